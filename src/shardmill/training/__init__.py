"""Fine-tuning of embedding models: pairs, losses, the loop and the folder it leaves. `tasks` makes a task of it."""
