"""The command line of vitzoo; a command imports torch only if it computes with a network."""
