package consul

// Limits of one transaction.
const (
	ServerTxnOps   = serverTxnOps
	ServerTxnBytes = serverTxnBytes
)

// How many requests of a Merger are under way at once.
const (
	MergedReads  = mergedReads
	MergedWrites = mergedWrites
	MergedParts  = mergedParts
)

// Waiting returns how many calls wait for others.
func (m *Merger) Waiting() int {
	return m.reads.length() + m.locks.length() + m.writes.length() + m.large.length()
}

func (g *gatherer[T]) length() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
