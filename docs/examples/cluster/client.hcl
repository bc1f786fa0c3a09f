# Other machines, in addition to consul.hcl.
server = false
