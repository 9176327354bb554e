"""Who may talk: handshakes and cookies, and what seals each packet."""
