package rcctl

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/inspect"
)

func gateCommand() *cli.Command {
	return leaf("gate [-o table|json|yaml]", "show the version whose records may be written, and who is older",
		`The gate is a version. No program writes a field of a record that a later version introduced, because an older
program would drop it. The leader of the farms raises the gate once all living farms and nodes emulate a later version;
the gate never goes back. The command lists the features that this rcctl knows, and the farms and nodes that are older
than the newest feature.

Examples:
  rcctl farm gate
  rcctl farm gate -o json | jq -r '.behind[] | .kind + " " + .name'`,
		onList(runGate), outputFlag(),
	)
}

func runGate(s *conn) error {
	v, err := s.gateView()
	if err != nil {
		return err
	}
	return s.print(v, nil, func(w io.Writer) error {
		line := "gate " + v.Version
		if v.By != "" {
			line += fmt.Sprintf(", by %s at %s", v.By, inspect.At(v.At))
		}
		fmt.Fprintln(w, clean(line))
		features := columns("FEATURE", "SINCE", "ALLOWED", "WHAT")
		for _, f := range v.Features {
			allowed := "yes"
			if !f.Allowed {
				allowed = "no"
			}
			features.add(f.Name, f.Since, allowed, f.What)
		}
		if err := features.write(w, coloured(w)); err != nil || len(v.Behind) == 0 {
			return err
		}
		fmt.Fprintln(w)
		behind := columns("OLDER", "NAME", "VERSION", "EMULATES")
		for _, b := range v.Behind {
			behind.add(b.Kind, b.Name, b.Version, b.Emulates)
		}
		return behind.write(w, coloured(w))
	})
}

func (s *conn) gateView() (inspect.GateView, error) {
	gate, err := s.ReadGate(s.Context)
	if err != nil {
		return inspect.GateView{}, fmt.Errorf("read the version gate: %w", err)
	}
	living, err := s.Writers(s.Context)
	if err != nil {
		return inspect.GateView{}, fmt.Errorf("read the living farms and nodes: %w", err)
	}
	return inspect.NewGateView(gate.Value, feature.Known, living), nil
}
