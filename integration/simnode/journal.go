package simnode

import "sync"

// Journal is a consul.Journal in memory.
type Journal struct {
	mu   sync.Mutex
	list []string
}

// Incarnations implements consul.Journal.
func (j *Journal) Incarnations() ([]string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.list...), nil
}

// Add implements consul.Journal.
func (j *Journal) Add(incarnation string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = append(j.list, incarnation)
	return nil
}

// Remove implements consul.Journal.
func (j *Journal) Remove(incarnation string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, id := range j.list {
		if id == incarnation {
			j.list = append(j.list[:i], j.list[i+1:]...)
			break
		}
	}
	return nil
}
