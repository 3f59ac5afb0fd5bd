"""What runs at home: the connection to each host, what is sent there, what is fetched and committed here."""
