"""What runs at home: the connections to the hosts, uploads to them, and the parts fetched and committed here."""
