package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// MaxNameBytes bounds the name of a service; those of its controllers are longer.
const MaxNameBytes = 50

// unpinned stands for a digest that a document leaves out while the rest of it is checked.
var unpinned = strings.Repeat("0", 64)

// Validate reports every mistake in the document, with paths from its top.
func (s *ServiceSpec) Validate() field.Errors {
	var errs field.Errors
	name := s.Name
	if name == "" {
		name = "generated"
	}
	if len(name) > MaxNameBytes {
		errs.Add("name", name, fmt.Sprintf("at most %d characters", MaxNameBytes))
	}
	as := s.controller(name)
	as.Replicas, as.ReplicaGroups = s.Replicas, s.ReplicaGroups
	as.Pod = pinned(s.Pod)
	errs = append(errs, as.Validate()...)
	if _, taken := s.Labels[ServiceLabel]; taken {
		errs.Add("labels."+ServiceLabel, s.Labels[ServiceLabel], "any other key; a deployment sets this one")
	}
	if s.Digests != "" && !slices.Contains(policies, s.Digests) {
		errs.Add("digests", string(s.Digests), "always, missing or never")
	}
	errs.Nest("update", s.Update.Validate())
	if s.PreDeploy != nil {
		errs.Nest("pre_deploy", s.PreDeploy.validate())
	}
	return errs
}

// ServiceLabel is the label of each controller that is a revision of a service.
const ServiceLabel = "service"

// pinned returns a manifest in which no digest is missing. It may be nil.
func pinned(m *manifest.Manifest) *manifest.Manifest {
	if m == nil {
		return nil
	}
	all := *m
	all.Launchables = slices.Clone(m.Launchables)
	for i := range all.Launchables {
		if a := &all.Launchables[i].Artifact; a.Kind == manifest.ArtifactTar && a.SHA256 == "" {
			a.SHA256 = unpinned
		}
	}
	return &all
}

func (p *PreDeploy) validate() field.Errors {
	var errs field.Errors
	checkSize(&errs, "args", len(p.Args), manifest.MaxArgs)
	checkSize(&errs, "env", len(p.Env), manifest.MaxEnv)
	return errs
}

func checkSize(errs *field.Errors, path string, n, most int) {
	if n > most {
		errs.Add(path, field.Text(fmt.Sprintf("%d entries", n)), fmt.Sprintf("at most %d entries", most))
	}
}
