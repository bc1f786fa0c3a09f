package rcctl

import (
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/inspect"
)

func gateCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "gate", Usage: "show which version's records may be written, and what waits for whom",
		UsageText: "rcctl farm gate [-o table|json|yaml]",
		Description: `No field of a record is written that a later version brought than the gate says: an older program would drop it. The
leader of the farms raises the gate once all farms and nodes that live emulate more; it never goes back. Listed are the
features that this rcctl knows, and the farms and nodes that are older than the newest of them.

Examples:
  rcctl farm gate
  rcctl farm gate -o json | jq -r '.behind[] | .kind + " " + .name'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onList(runGate),
	})
}

func runGate(s *conn) error {
	v, err := s.gateView()
	if err != nil {
		return err
	}
	return s.print(v, nil, func(w io.Writer) error {
		line := "gate " + v.Version
		if v.By != "" {
			line += fmt.Sprintf(", by %s at %s", v.By, v.At.UTC().Format(time.RFC3339))
		}
		fmt.Fprintln(w, clean(line))
		features := table{header: []string{"FEATURE", "SINCE", "ALLOWED", "WHAT"}, paint: -1}
		for _, f := range v.Features {
			allowed := "yes"
			if !f.Allowed {
				allowed = "no"
			}
			features.rows = append(features.rows, []string{f.Name, f.Since, allowed, f.What})
		}
		if err := features.write(w, coloured(w)); err != nil || len(v.Behind) == 0 {
			return err
		}
		fmt.Fprintln(w)
		behind := table{header: []string{"OLDER", "NAME", "VERSION", "EMULATES"}, paint: -1}
		for _, b := range v.Behind {
			behind.rows = append(behind.rows, []string{b.Kind, b.Name, b.Version, b.Emulates})
		}
		return behind.write(w, coloured(w))
	})
}

// gateView reads the gate, and who lives.
func (s *conn) gateView() (inspect.GateView, error) {
	gate, err := s.PresentGate(s.Context)
	if err != nil {
		return inspect.GateView{}, fmt.Errorf("read the version gate: %w", err)
	}
	living, err := s.Writers(s.Context)
	if err != nil {
		return inspect.GateView{}, fmt.Errorf("read who lives: %w", err)
	}
	return inspect.NewGateView(gate.Value, feature.Known, living), nil
}
