package preparer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// nameFile says how this data directory last held its node's name.
const nameFile = "name.json"

// nameNote is what is remembered of the node's record while the name was ours. It tells a record that another host wrote after
// that, which declares this one dead, from one that is older, or of a store that was wiped or restored.
type nameNote struct {
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"`
	Nonce       string `json:"nonce"` // of the cluster, as the record had it
	Index       uint64 `json:"index"` // of the record, when it first said all this
	// Lost is the host that has taken the name over; empty: none has.
	Lost string `json:"lost,omitempty"`
}

// held returns the note after the node's record was seen under our lock. Nothing changes while incarnation and nonce do not.
func (n nameNote) held(rec store.Rec[node.Node]) nameNote {
	v := rec.Value
	if v.Nonce == "" || n.Node == v.Name && n.Incarnation == v.Incarnation && n.Nonce == v.Nonce {
		return n
	}
	return nameNote{Node: v.Name, Incarnation: v.Incarnation, Nonce: v.Nonce, Index: rec.Index}
}

// keeps returns why a record that belongs to another host does not end our pods, and nothing when it does. regressed is the
// newest nonce when this preparer last saw the store go back in time.
func (n nameNote) keeps(rec store.Rec[node.Node], host, regressed string) (why string) {
	v := rec.Value
	switch {
	case v.Host == host || v.Host == "":
		return "the record does not name another data directory"
	case n.Node != v.Name:
		return "this data directory has not held the name"
	case v.Nonce == "":
		return "the other host has not read its intents yet"
	case v.Nonce != n.Nonce, v.Regressed >= n.Nonce, regressed >= n.Nonce:
		return "the store was wiped or restored since this host held the name"
	case rec.Index <= n.Index:
		return "the record is older than this host's last one"
	default:
		return ""
	}
}

// suspicion is that the name was taken over. One answer that says so may be a strange one.
type suspicion struct {
	host  string // empty: there is none
	since time.Time
}

// add takes in one more answer, and returns whether two that are so far apart say the same, without another between them.
func (s *suspicion) add(host string, now time.Time, after time.Duration) (sure bool) {
	if s.host != host {
		*s = suspicion{host: host, since: now}
		return false
	}
	return host != "" && now.Sub(s.since) >= after
}

// name is what is known of the node's name. Preparer.mu guards it; Preparer.noting is held while it is changed.
type name struct {
	path    string
	reserve *durable.Reserve
	note    nameNote
}

// openName reads the note. One that is garbage is as none: then nothing tells that the name was ever ours, and pods run on.
func openName(dir string, reserve *durable.Reserve) (name, error) {
	n := name{path: filepath.Join(dir, nameFile), reserve: reserve}
	data, err := os.ReadFile(n.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, fmt.Errorf("read note of the node's name: %w", err)
	}
	if err == nil && json.Unmarshal(data, &n.note) != nil {
		n.note = nameNote{}
	}
	return n, nil
}

// lostTo returns the host that has taken this node's name over; empty: none has. The caller holds p.mu.
func (p *Preparer) lostTo() string {
	if p.name.note.Node != p.cfg.Node.Name {
		return ""
	}
	return p.name.note.Lost
}

// noteName changes what is known of the node's name. What cannot be written counts all the same, until this preparer ends.
func (p *Preparer) noteName(change func(nameNote) nameNote) {
	const key = "note of the name"
	p.noting.Lock()
	defer p.noting.Unlock()
	p.mu.Lock()
	before := p.name
	next := change(before.note)
	p.name.note = next
	p.mu.Unlock()
	if next == before.note {
		return
	}
	data, err := json.Marshal(next)
	if err == nil {
		err = before.reserve.WriteFile(before.path, data)
	}
	if err != nil {
		p.trouble.report(key, "it cannot be noted whose the node's name is; after a restart this must be found out anew", err)
		return
	}
	p.trouble.over(key)
}

// judge finds out whether the name, which another host has, was taken over from this one. Whoever took it over has declared this
// machine dead, and its pods are started elsewhere: ours end, so that nothing runs twice (P5). Anything else ends nothing (P4).
func (s *serving) judge(ctx context.Context) {
	rec, err := s.cfg.Store.Node(ctx, s.cfg.Node.Name)
	var corrupt *store.CorruptError
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.As(err, &corrupt) {
		return // no answer says nothing
	}
	p := s.Preparer
	p.mu.Lock()
	lost := p.lostTo()
	why := "the record is gone or cannot be read"
	if err == nil {
		why = p.name.note.keeps(rec, p.cfg.Node.Host, p.regressed)
	}
	p.mu.Unlock()
	if lost != "" {
		return
	}
	host := rec.Value.Host
	if why != "" {
		host = ""
	}
	if why != s.kept {
		s.kept = why
		if why != "" {
			s.log.WithField(obs.Reason, why).Warn("pods of this host keep running although its node's name is another's; if they run elsewhere too, end them")
		}
	}
	if s.suspicion.add(host, time.Now(), s.cfg.ConfirmLoss) {
		s.lose(rec.Value)
	}
}

// lose ends all pods.
func (s *serving) lose(to node.Node) {
	s.log.WithField(obs.Reason, "taken over by host "+hostOf(to)).Error("this node's name was taken over by another host, which declares this one dead; all its pods are stopped, so that none runs twice")
	s.noteName(func(n nameNote) nameNote {
		n.Lost = hostOf(to)
		return n
	})
	s.Preparer.mu.Lock()
	defer s.Preparer.mu.Unlock()
	for _, e := range s.pods {
		s.enqueue(e)
		e.interrupt()
	}
}
