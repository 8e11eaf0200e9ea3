"""What runs in the processes of users: publishing, fetching, consuming, transactions, and the connection to it all."""
