package image

import "os"

// Progress says how far the pulls of an image are.
type Progress struct {
	Done, Total int64 // bytes of the layers that were missing at the beginning: downloaded so far, and all
	Layers      int   // of the image; 0: its manifest is not known so far
	Unpacked    int   // layers
}

// Progress returns how far a pull of an image is. ok: there is one. A caller that sees another value than before knows
// that something has arrived or was unpacked.
func (s *Store) Progress(digest string) (progress Progress, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.pulls {
		if p.ref.Digest != digest {
			continue
		}
		ok = true
		if p.layers == nil {
			continue
		}
		return s.progressOf(p), true
	}
	return Progress{}, ok
}

// progressOf reads the disk, so it needs no bookkeeping that several pulls of one layer would share. The caller holds
// s.mu.
func (s *Store) progressOf(p *pull) Progress {
	progress := Progress{Layers: len(p.layers)}
	counted := map[string]bool{} // a layer may be there twice, and is downloaded once
	for _, l := range p.layers {
		done := s.arrived[l.digest]
		if s.isUnpacked(l) {
			progress.Unpacked++
			done = l.size
		}
		if p.missing[l.digest] && !counted[l.digest] {
			counted[l.digest] = true
			progress.Total += l.size
			progress.Done += min(l.size, done)
		}
	}
	return progress
}

func (s *Store) isUnpacked(l layer) bool {
	for _, name := range l.names() {
		if _, err := os.Lstat(s.tree(name)); err == nil {
			return true
		}
	}
	return false
}
