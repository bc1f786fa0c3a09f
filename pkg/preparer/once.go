package preparer

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
)

// maxRan is how many versions that run once are remembered of an identity.
const maxRan = 64

// ran returns the record with a version that runs once noted as started.
func (r Record) ran(digest string) Record {
	if slices.Contains(r.Ran, digest) {
		return r
	}
	all := append(slices.Clone(r.Ran), digest)
	r.Ran = all[max(0, len(all)-maxRan):]
	return r
}

// saveRan notes, before a version that runs once is started, that it was: if the note is there and the process is not, nobody knows
// how far it came, and it is not started again.
func (p *Preparer) saveRan(e *entry, rec Record, m *manifest.Manifest) (Record, error) {
	if !m.RunsOnce() {
		return rec, nil
	}
	return p.save(e, rec.ran(rec.Installed.Digest))
}

// spend keeps a version that runs once, and was started before, from being started again. What the runtime has of it stays, as it says
// how it ended.
func (p *Preparer) spend(e *entry, rec *Record, wanted []string, plan *supervise.Plan) {
	m := rec.Installed.Decode()
	spent := m != nil && len(plan.Start) > 0 && m.RunsOnce() && slices.Contains(rec.Ran, rec.Installed.Digest)
	if spent {
		plan.Start = nil
		plan.Remove = slices.DeleteFunc(plan.Remove, func(id string) bool { return slices.Contains(wanted, id) })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.spent != spent {
		e.spent = spent
		p.changed(e)
	}
}
