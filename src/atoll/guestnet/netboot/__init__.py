"""What machines boot from over the network: which file a machine is given, over TFTP and over HTTP."""
