package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// reason explains why the tests need not notice a mutant.
type reason struct {
	site
	Reason string `json:"reason"`
}

func readReasons(file string) ([]reason, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out []reason
	if err := yaml.UnmarshalStrict(data, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for i, r := range out {
		if r.File == "" || r.Code == "" || r.Becomes == "" || r.Reason == "" {
			return nil, fmt.Errorf("%s: entry %d (%s): file, code, becomes and reason are needed", file, i+1, r.site)
		}
		if slices.ContainsFunc(out[:i], func(o reason) bool { return o.site == r.site }) {
			return nil, fmt.Errorf("%s: entry %d is there twice: %s", file, i+1, r.site)
		}
	}
	return out, nil
}

type summary struct {
	pkg                 string
	killed, lived, left int      // left: no test reaches them; lived: also those that were not judged
	none                int      // changes that do not compile
	explained           []string // survivors, each with its reason
	unexplained         []string
	unreached           []string
	late                []string // tests were still running at their limit, which proves nothing
	stale               []string // reasons that no survivor needs
}

// sum judges the mutants in those files of a package whose name contains only.
func sum(pkg, only string, found []mutant, why []reason) summary {
	s := summary{pkg: pkg}
	needed := make([]bool, len(why))
	for i := range found {
		m := &found[i]
		at := fmt.Sprintf("%s:%d %s: %s, with %s", m.File, m.line, m.Function, m.Code, m.Becomes)
		switch m.status {
		case statusNotViable:
			s.none++
		case statusKilled:
			s.killed++
		case statusTimedOut:
			s.lived++
			s.late = append(s.late, at)
		case statusNot:
			s.left++
			s.unreached = append(s.unreached, at)
		case statusLived:
			s.lived++
			if r := slices.IndexFunc(why, func(r reason) bool { return r.site == m.site }); r >= 0 {
				needed[r] = true
				s.explained = append(s.explained, at+"\n      "+why[r].Reason)
			} else {
				s.unexplained = append(s.unexplained, at)
			}
		}
	}
	for i, r := range why {
		if strings.HasPrefix(r.File, pkg+"/") && strings.Contains(path.Base(r.File), only) && !needed[i] {
			s.stale = append(s.stale, r.String())
		}
	}
	return s
}

func percent(part, whole int) float64 {
	if whole == 0 {
		return 100
	}
	return 100 * float64(part) / float64(whole)
}

func (s *summary) killedOf() float64 { return percent(s.killed, s.killed+s.lived) }

func (s *summary) reachedOf() float64 { return percent(s.killed+s.lived, s.killed+s.lived+s.left) }

func (s *summary) missed() bool {
	return s.killedOf() < goal || s.reachedOf() < goal || len(s.unexplained)+len(s.late)+len(s.stale) > 0
}

func (s *summary) print(w io.Writer) {
	list := func(heading string, lines []string) {
		for i, line := range lines {
			if i == 0 {
				fmt.Fprintf(w, "  %s:\n", heading)
			}
			fmt.Fprintf(w, "    %s\n", line)
		}
	}
	fmt.Fprintf(w,
		"%s: %d of %d reached mutants killed (%.1f %%, goal %d), "+
			"%d of %d reached (%.1f %%, goal %d), %d more do not compile\n",
		s.pkg, s.killed, s.killed+s.lived, s.killedOf(), goal, s.killed+s.lived,
		s.killed+s.lived+s.left, s.reachedOf(), goal, s.none)
	list("survivors, each with its reason", s.explained)
	list("survivors without a reason", s.unexplained)
	list("not judged, because the tests took too long", s.late)
	list("not reached by any test", s.unreached)
	list("reasons that no survivor needs", s.stale)
}
