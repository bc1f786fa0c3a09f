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

// Member is a living farm, at farms/<farm-id>. The end of its deleting session deletes the key.
type Member struct {
	ID               string `json:"id"`
	Incarnation      string `json:"incarnation"`
	Version          string `json:"version"`
	EmulationVersion string `json:"emulation_version"`
	Address          string `json:"address,omitempty"`     // of its debug server
	RCSelector       string `json:"rc_selector,omitempty"` // selects the controllers that the farm may own
	// RCID is the controller of a member that is a program with one controller; empty for a farm.
	RCID string `json:"rc_id,omitempty"`
}

// Heard is when a daemon last wrote to Consul, at heard/farms/<id> and heard/nodes/<node>. It is only for people: no
// program decides anything by it. If Consul refuses a daemon's token, only Heard shows that before its session ends.
type Heard struct {
	At           time.Time `json:"at"` // by the daemon's clock
	EverySeconds float64   `json:"every_seconds"`
	// Untold has the nodes to which a farm could not push; nil: none.
	Untold           *Untold `json:"untold,omitempty" feature:"push"`
	OutsideScheduler bool    `json:"outside_scheduler,omitempty" feature:"outside-scheduler"`
}

// Untold has the nodes to which the last push failed. Only nodes without a blocking query need pushes (ADR 26).
type Untold struct {
	Count int          `json:"count"`
	Nodes []UntoldNode `json:"nodes"` // at most MaxUntold of them, by name
}

// UntoldNode is one node of Untold.
type UntoldNode struct {
	Node   string    `json:"node"`
	Since  time.Time `json:"since"` // by the farm's clock
	Reason string    `json:"reason"`
}

// MaxUntold bounds Untold.Nodes.
const MaxUntold = 20

// heardSlack is added to two intervals before a daemon is called silent, because clocks differ.
const heardSlack = 5 * time.Second

// Silent reports whether a daemon has not written for more than two intervals and heardSlack.
func (h Heard) Silent(now time.Time) bool {
	return now.Sub(h.At) > 2*time.Duration(h.EverySeconds*float64(time.Second))+heardSlack
}

const maxEvery = 24 * time.Hour

// Check returns why the note cannot be used.
func (h *Heard) Check() error {
	var errs field.Errors
	errs.CheckTime("at", h.At)
	if h.EverySeconds < 0 || h.EverySeconds > maxEvery.Seconds() {
		errs.Add("every_seconds", h.EverySeconds, fmt.Sprintf("a number from 0 to %.0f", maxEvery.Seconds()))
	}
	if u := h.Untold; u != nil {
		field.CheckRange(&errs, "untold.count", u.Count, 0, math.MaxInt32)
		if len(u.Nodes) > MaxUntold {
			errs.Add("untold.nodes", field.Text(fmt.Sprintf("%d entries", len(u.Nodes))),
				fmt.Sprintf("0 to %d entries", MaxUntold))
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

// FarmHeard writes that a farm lives and, if the gate allows it, u and outside. The note vanishes with the session. It
// returns ErrRefused if the farm is no member.
func (a *Agents) FarmHeard(ctx context.Context, sess *consul.Session, id string, every time.Duration, u Untold,
	outside bool,
) error {
	h := heardNow(every)
	h.OutsideScheduler = outside
	if u.Count > 0 {
		h.Untold = &u
	}
	return a.heard(ctx, sess, consul.CheckSession(a.keys.Farms.Key(id), sess.Deleting),
		lock(a.keys.HeardFarms.Key(id), allowed(a.guard, h), sess.Deleting))
}

// NodeHeard writes that a preparer lives. The note outlives the session. It returns ErrRefused if the preparer does not
// hold its node's lock.
func (a *Agents) NodeHeard(ctx context.Context, sess *consul.Session, name string, every time.Duration) error {
	return a.heard(ctx, sess, consul.CheckSession(a.keys.Nodes.Key(name), sess.Releasing),
		set(a.keys.HeardNodes.Key(name), heardNow(every)))
}

func (a *Agents) heard(ctx context.Context, sess *consul.Session, ops ...consul.Op) error {
	sent := time.Now()
	return sess.Answered(sent, a.send(ctx, ops...))
}

// AskOutside reports whether a living farm uses an outside scheduler. It leaves out unreadable notes.
func (a *Agents) AskOutside(ctx context.Context) (bool, error) {
	farms, _, err := a.Heard.List(ctx, Default, "farms")
	return slices.ContainsFunc(farms, func(r Rec[Heard]) bool { return r.Value.OutsideScheduler }), err
}

// HeardOf reads when each farm and node last wrote, by name. It leaves out unreadable notes.
func (a *Agents) HeardOf(ctx context.Context) (farms, nodes map[string]Heard, err error) {
	recs, _, err := a.Heard.List(ctx, Default)
	farms, nodes = map[string]Heard{}, map[string]Heard{}
	for _, r := range recs {
		if name, is := strings.CutPrefix(r.Key, a.keys.HeardFarms.Key()); is {
			farms[name] = r.Value
		} else if name, is := strings.CutPrefix(r.Key, a.keys.HeardNodes.Key()); is {
			nodes[name] = r.Value
		}
	}
	return farms, nodes, err
}
