package trust

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

type limit struct {
	name, unit string
	asked      int64
	most       int64 // zero: not limited
}

func (r *Rule) limits(asked manifest.Usage) []limit {
	return []limit{
		{"cpu", "thousandths of a core", asked.CPU, int64(r.Resources.CPU)},
		{"memory", "bytes", asked.Memory, int64(r.Resources.Memory)},
		{"pids", "processes and threads", asked.PIDs, r.Resources.PIDs},
	}
}

// beyond returns an error for each thing that a manifest asks for beyond the rule.
func (r *Rule) beyond(m *manifest.Manifest) field.Errors {
	var errs field.Errors
	for i := range m.Launchables {
		l := &m.Launchables[i]
		at := fmt.Sprintf("launchables[%d].", i)
		if r.Users != nil && l.User != "" && !anyGlob(r.Users, l.User) {
			errs.Add(at+"user", l.User, orNothing(r.Users))
		}
		if r.Images != nil && l.Artifact.IsImage() && !anyGlob(r.Images, l.Artifact.Repository()) {
			errs.Add(at+"artifact.ref", l.Artifact.Ref, orNothing(r.Images))
		}
		for _, limit := range r.limits(manifest.Usage{
			CPU: int64(l.Resources.CPU), Memory: int64(l.Resources.Memory),
			PIDs: l.Resources.MaxPIDs(),
		}) {
			if limit.most > 0 && limit.asked <= 0 {
				errs.Missing(at+"resources."+limit.name,
					fmt.Sprintf("%s, at most %d of all launchables together", limit.unit, limit.most))
			}
		}
	}
	for _, path := range m.HostPaths() {
		// A path that is not clean, for example with "..", could match a pattern and lead elsewhere.
		if r.Paths != nil && (filepath.Clean(path) != path || !anyGlob(r.Paths, path)) {
			errs.Add("a path of the node", path, orNothing(r.Paths))
		}
	}
	for _, limit := range r.limits(m.Resources()) {
		if limit.most > 0 && limit.asked > limit.most {
			errs.Add("resources."+limit.name, limit.asked,
				fmt.Sprintf("%s, at most %d of all launchables together", limit.unit, limit.most))
		}
	}
	return errs
}

func anyGlob(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return glob(p, text) })
}

func orNothing(patterns []string) string {
	if len(patterns) == 0 {
		return "none"
	}
	return strings.Join(patterns, ", ")
}
