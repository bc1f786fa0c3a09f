package node

// Foreign reports whether the record is another machine's than that of who would write it now. A data directory with the
// same host id beside another agent may be a copy, so that it counts as foreign too. A writer without a host id compares
// nothing.
func (n *Node) Foreign(writer Node) bool {
	otherAgent := n.ConsulNode != "" && writer.ConsulNode != "" && n.ConsulNode != writer.ConsulNode
	switch {
	case writer.Host == "":
		return false
	case n.Host != "" && n.Host != writer.Host:
		return true
	default: // records of versions without host ids tell only their agent
		return otherAgent
	}
}
