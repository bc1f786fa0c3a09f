package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// Member is a living farm, at farms/<farm-id>. The key is held, and deleted with, the farm's deleting session.
type Member struct {
	ID               string `json:"id"`
	Incarnation      string `json:"incarnation"`
	Version          string `json:"version"`
	EmulationVersion string `json:"emulation_version"`
	Address          string `json:"address,omitempty"`     // of its debug server
	RCSelector       string `json:"rc_selector,omitempty"` // of the controllers that it works on
	RCID             string `json:"rc_id,omitempty"`       // the only controller that it works on, in place of those that a selector selects; empty: it is a farm
}

// Heard says when a daemon last wrote to Consul under its session, at heard/farms/<id> and heard/nodes/<node>. It is for people: where a
// daemon's token is refused nothing else changes before its session ends. Nothing is decided by it.
type Heard struct {
	At           time.Time `json:"at"` // by the daemon's clock
	EverySeconds float64   `json:"every_seconds"`
	// Untold are, of a farm, the nodes that it could not tell of their intents; nil: none.
	Untold *Untold `json:"untold,omitempty" feature:"push"`
	// OutsideScheduler: the farm asks another scheduler than the built-in one for nodes.
	OutsideScheduler bool `json:"outside_scheduler,omitempty" feature:"outside-scheduler"`
}

// Untold are nodes without a standing query that a farm could not tell of their intents when it tried last (ADR 26).
type Untold struct {
	Count int          `json:"count"`
	Nodes []UntoldNode `json:"nodes"` // MaxUntold of them at most, by name
}

// UntoldNode is one of them.
type UntoldNode struct {
	Node   string    `json:"node"`
	Since  time.Time `json:"since"` // by the farm's clock
	Reason string    `json:"reason"`
}

// MaxUntold is how many nodes a farm names that it could not tell.
const MaxUntold = 20

// heardSlack is how much later than twice the usual a daemon may write before it counts as silent: clocks differ.
const heardSlack = 5 * time.Second

// Silent reports whether a daemon should have been heard since.
func (h Heard) Silent(now time.Time) bool {
	return now.Sub(h.At) > 2*time.Duration(h.EverySeconds*float64(time.Second))+heardSlack
}

// maxEvery is more than any daemon waits between two writes.
const maxEvery = 24 * time.Hour

// Check reports why nobody can tell when the daemon was heard.
func (h *Heard) Check() error {
	var errs field.Errors
	errs.CheckTime("at", h.At)
	if h.EverySeconds < 0 || h.EverySeconds > maxEvery.Seconds() {
		errs.Add("every_seconds", h.EverySeconds, fmt.Sprintf("a number from 0 to %.0f", maxEvery.Seconds()))
	}
	if u := h.Untold; u != nil {
		field.CheckRange(&errs, "untold.count", u.Count, 0, math.MaxInt32)
		if len(u.Nodes) > MaxUntold {
			errs.Add("untold.nodes", field.Text(fmt.Sprintf("%d entries", len(u.Nodes))), fmt.Sprintf("0 to %d entries", MaxUntold))
		}
		for _, n := range u.Nodes {
			errs.CheckName("untold.nodes.node", n.Node)
			errs.CheckTime("untold.nodes.since", n.Since)
		}
	}
	return errs.Err()
}

func heardNow(every time.Duration) *Heard {
	return &Heard{At: time.Now().UTC().Truncate(time.Millisecond), EverySeconds: every.Seconds()}
}

// FarmHeard notes that a farm writes, as long as it is a member, and, if the gate allows it, which nodes it could not
// tell of their intents, and whether it asks an outside scheduler. The note vanishes with its session. It returns
// ErrRefused when it is none.
func (s *Agents) FarmHeard(ctx context.Context, sess *consul.Session, id string, every time.Duration, u Untold, outside bool) error {
	h := heardNow(every)
	h.OutsideScheduler = outside
	if u.Count > 0 {
		h.Untold = &u
	}
	return s.heard(ctx, sess, consul.CheckSession(s.keys.Farms.Key(id), sess.Deleting), lock(s.keys.HeardFarms.Key(id), allowed(s.guard, h), sess.Deleting))
}

// NodeHeard notes that a preparer writes, as long as it holds its node. The note stays. It returns ErrRefused when it does not.
func (s *Agents) NodeHeard(ctx context.Context, sess *consul.Session, name string, every time.Duration) error {
	return s.heard(ctx, sess, consul.CheckSession(s.keys.Nodes.Key(name), sess.Releasing), set(s.keys.HeardNodes.Key(name), heardNow(every)))
}

func (s *Agents) heard(ctx context.Context, sess *consul.Session, ops ...consul.Op) error {
	sent := time.Now()
	_, err := s.c.Commit(ctx, ops)
	return sess.Answered(sent, err)
}

// AskOutside reports whether a living farm asks an outside scheduler for nodes. Notes that cannot be read are left out.
func (s *Agents) AskOutside(ctx context.Context) (bool, error) {
	pairs, err := s.c.List(ctx, s.keys.HeardFarms.Key(), consul.Default)
	return slices.ContainsFunc(pairs, func(p consul.Pair) bool {
		rec, err := s.Heard.decode(p)
		return err == nil && rec.Value.OutsideScheduler
	}), err
}

// HeardOf reads when each farm and each node was heard last, by their names. Notes that cannot be read are left out.
func (s *Agents) HeardOf(ctx context.Context) (farms, nodes map[string]Heard, err error) {
	pairs, err := s.c.List(ctx, s.keys.Heard.Key(), consul.Default)
	if err != nil {
		return nil, nil, err
	}
	farms, nodes = map[string]Heard{}, map[string]Heard{}
	for _, p := range pairs {
		rec, err := s.Heard.decode(p)
		if err != nil {
			continue
		}
		if name, is := strings.CutPrefix(p.Key, s.keys.HeardFarms.Key()); is {
			farms[name] = rec.Value
		}
		if name, is := strings.CutPrefix(p.Key, s.keys.HeardNodes.Key()); is {
			nodes[name] = rec.Value
		}
	}
	return farms, nodes, nil
}
