# Each Consul agent, server or client. /etc/consul.d also has server.hcl or client.hcl, machine.hcl, which has the name
# and the address, and agent.hcl, which has the agent's token.
datacenter = "dc1"
data_dir   = "/var/lib/consul"

# HTTP answers on 127.0.0.1:8500 only. Pods can reach it, so a client without a token may do nothing.
acl {
  enabled        = true
  default_policy = "deny"
}

# Agents talk to servers only with certificates of our authority.
tls {
  defaults {
    ca_file   = "/etc/consul.d/ca.pem"
    cert_file = "/etc/consul.d/cert.pem"
    key_file  = "/etc/consul.d/key.pem"
  }
  internal_rpc {
    verify_incoming        = true
    verify_outgoing        = true
    verify_server_hostname = true
  }
}

# A machine that shuts down is lost after 30 s. With true, its agent would leave the cluster: farms then take the
# machine for unmanaged, and wait for 10 minutes.
leave_on_terminate = false
