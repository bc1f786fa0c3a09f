package checker

import (
	"slices"
	"strings"
)

type session struct {
	name, node string
	deletes    bool // deletes the keys that it holds when it ends; otherwise it releases them
	checks     []string
}

type checkName struct{ node, id string }

type check struct{ status, service string }

const critical = "critical"

func (s *state) sessionRequest(r *sessionRequest, index uint64) {
	in := &r.Session
	if r.Op == "destroy" {
		s.endSession(in.ID, index)
		return
	}
	made := session{
		name: in.Name, node: in.Node, deletes: in.Behavior == "delete",
		checks: slices.Concat(in.NodeChecks, in.Checks),
	}
	for _, c := range in.ServiceChecks {
		made.checks = append(made.checks, c.ID)
	}
	if !s.nodes[in.Node] {
		return
	}
	for _, id := range made.checks {
		if c, known := s.checks[checkName{in.Node, id}]; !known || c.status == critical {
			return
		}
	}
	s.sessions[in.ID] = made
}

func (s *state) endSession(id string, index uint64) {
	ended, known := s.sessions[id]
	if !known {
		return
	}
	delete(s.sessions, id)
	for _, g := range s.groups {
		for key, k := range g {
			switch {
			case k.Session != id:
			case ended.deletes:
				s.put(key, nil)
			default:
				free := *k
				free.Session, free.Index = "", index
				s.put(key, &free)
			}
		}
	}
}

func (s *state) register(r *registerRequest, index uint64) {
	s.nodes[r.Node] = true
	for _, c := range append(slices.Clone(r.Checks), r.Check) {
		if c == nil {
			continue
		}
		status := c.Status
		if status == "" {
			status = critical
		}
		s.checks[checkName{r.Node, c.CheckID}] = check{status: status, service: c.ServiceID}
		if status == critical {
			s.endSessionsOn(r.Node, c.CheckID, index)
		}
	}
}

func (s *state) endSessionsOn(node, checkID string, index uint64) {
	for id, sess := range s.sessions {
		if sess.node == node && slices.Contains(sess.checks, checkID) {
			s.endSession(id, index)
		}
	}
}

func (s *state) deregister(r *deregisterRequest, index uint64) {
	for name, c := range s.checks {
		if name.node != r.Node || r.ServiceID != "" && c.service != r.ServiceID ||
			r.ServiceID == "" && r.CheckID != "" && name.id != r.CheckID {
			continue
		}
		delete(s.checks, name)
		s.endSessionsOn(name.node, name.id, index)
	}
	if r.ServiceID != "" || r.CheckID != "" {
		return
	}
	delete(s.nodes, r.Node)
	for id, sess := range s.sessions {
		if sess.node == r.Node {
			s.endSession(id, index)
		}
	}
}

func (s *state) passingPreparers() map[checkName]string {
	out := map[checkName]string{}
	for name := range s.checks {
		rest, ours := strings.CutPrefix(name.id, "rcfarm-preparer-")
		if !ours || !s.passing(name) {
			continue
		}
		// <node>-<incarnation>-ttl
		parts := strings.Split(rest, "-")
		if len(parts) >= 3 {
			out[name] = strings.Join(parts[:len(parts)-2], "-")
		}
	}
	return out
}

// passing requires, as Consul does, that neither the check nor the check of its agent's machine is critical.
func (s *state) passing(name checkName) bool {
	c, known := s.checks[name]
	machine, watched := s.checks[checkName{name.node, "serfHealth"}]
	return known && c.status != critical && (!watched || machine.status != critical)
}
