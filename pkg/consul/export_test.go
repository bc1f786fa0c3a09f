package consul

const (
	ServerTxnOps   = serverTxnOps
	ServerTxnBytes = serverTxnBytes
)

const (
	MergedReads  = mergedReads
	MergedWrites = mergedWrites
	MergedParts  = mergedParts
)

func (m *Merger) Waiting() int {
	return m.reads.length() + m.locks.length() + m.writes.length() + m.large.length()
}

func (g *gatherer[T]) length() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
