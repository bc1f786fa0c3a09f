package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// WhyStays returns the first reason that it finds why a pod has not moved off a node, "" for none.
func WhyStays(s *Situation, node string) string {
	as := *s
	as.RC = *counted(&s.RC, s.Status)
	as.Placements = slices.Clone(s.Placements)
	slices.SortFunc(as.Placements, func(a, b pod.Placement) int { return a.Compare(b.Identity) })
	for i := range as.Placements {
		if p := &as.Placements[i]; p.Node == node {
			if why := whyStays(&as, p); why != "" {
				return NameOf(p) + " does not move: " + why
			}
		}
	}
	return ""
}

const longStop = time.Minute

func whyStays(s *Situation, p *pod.Placement) string {
	if causes := ownership(s); len(causes) > 0 {
		return strings.TrimSuffix(causes[0].What, ".")
	}
	for _, c := range []rc.ConditionType{rc.BreakerTripped, rc.Holding, rc.SchedulerFailing} {
		if s.is(c) {
			return fmt.Sprintf("%s: %s", c, s.why(c))
		}
	}
	switch {
	case p.RunState == pod.Stopped && (p.StoppingSince == nil || s.Now.Sub(*p.StoppingSince) < longStop):
		return "" // it is on its way
	case p.RunState == pod.Stopped:
		return "it was asked to stop at " + At(*p.StoppingSince) + " and has not confirmed it"
	case s.RC.Disabled:
		return "its controller is disabled"
	case s.RC.Strategy == rc.Static:
		return "its controller is static; to stop it at a deadline: rcctl node drain " + p.Node +
			" --deadline 0s --force"
	}
	if reasons, takes := refusals(s, p.Role, p); len(takes) == 0 {
		return refusedBy(reasons, p.Node)
	}
	least := s.RC.MinimumAvailable()
	if r := s.Realities[store.At{Identity: p.Identity, Node: p.Node}]; r.Available && s.Status != nil &&
		s.Status.Available-1 < least {
		return fmt.Sprintf("%s available, and the minimum is %d", field.Count(s.Status.Available, "replica"), least)
	}
	if s.is(rc.Blocked) {
		return s.why(rc.Blocked)
	}
	return ""
}

func refusedBy(reasons map[scheduler.Reason][]string, own string) string {
	var texts []string
	for _, a := range advice {
		others := slices.DeleteFunc(slices.Clone(reasons[a.reason]), func(name string) bool { return name == own })
		if len(others) == 0 {
			continue
		}
		what := a.what
		if a.reason == scheduler.Selector {
			what = "have labels that its selector does not match"
		}
		texts = append(texts, fmt.Sprintf("these %s: %s", what, SomeOf(others)))
	}
	if texts == nil {
		return "there is no other node"
	}
	return "no other node takes it: " + strings.Join(texts, "; ")
}
