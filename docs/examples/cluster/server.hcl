# Consul servers, in addition to consul.hcl. With three servers, the cluster survives the loss of one.
server           = true
bootstrap_expect = 3
