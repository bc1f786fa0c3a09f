package rcctl

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/regular"
)

const savedAllowed = "the name of a file that rcctl plan --out has written"

func outFlag() []cli.Flag {
	return []cli.Flag{&cli.StringFlag{
		Name: "out", Usage: "save the plan in `FILE`, which only you can read, for rcctl deploy --plan",
		Action: func(c *cli.Context, path string) error {
			if path == "" || path == "-" {
				return badFlag(c, "--out", path, "the name of a file")
			}
			return nil
		},
	}}
}

func savedFlag() []cli.Flag {
	return option("plan",
		"carry out the plan that rcctl plan --out saved in `FILE`, unless the cluster has changed since")
}

func (d *deployer) save(all []*planned) error {
	path, epoch := d.conn.String("out"), d.planner.State.Epoch
	if epoch == "" {
		return refusedf("--out: this cluster has no readable epoch, so a saved plan could not be bound to it; " +
			"start its first farm, or deploy without a saved plan: rcctl deploy -f FILE")
	}
	saved := plan.Saved{By: d.planner.By, At: time.Now().UTC().Truncate(time.Second), Options: d.options}
	for _, p := range all {
		saved.Services = append(saved.Services, plan.Save(p.deployment, &p.plan, epoch, p.domain))
	}
	data, err := saved.Encode()
	if err == nil {
		err = writePrivate(path, data)
	}
	if err != nil {
		return fmt.Errorf("save the plan in %s: %w", path, unwrapPath(err))
	}
	out := d.conn.out
	if d.conn.String("output") != formats[0] { // a program reads the output
		out = d.conn.err
	}
	fmt.Fprintf(out, "saved in %s, with all values of env; "+
		"it can be carried out until documents, controllers, rollouts or the epoch change\n"+
		"next: rcctl deploy --plan %s\n", path, path)
	return nil
}

// writePrivate writes a file that only its owner can read. It is safe where others can write: the content goes to a new
// file with a random name.
func writePrivate(path string, data []byte) (err error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return errors.New("it exists and is not a regular file; allowed: a new file, or a regular one to replace")
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()) // the umask may have taken bits away
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return durable.SyncDir(filepath.Dir(path))
}

// readSaved refuses flags that choose what to deploy or how, because the file has both.
func readSaved(c *cli.Context) (*plan.Saved, error) {
	for _, f := range slices.Concat(fileFlag(), massStopFlag(), planFlags()) {
		if name := f.Names()[0]; c.IsSet(name) {
			return nil, usagef(c,
				"--plan together with --%s; allowed: one of them, because the plan has what to deploy and how", name)
		}
	}
	if _, err := noArgs(c); err != nil {
		return nil, err
	}
	path := c.String("plan")
	if path == "" {
		return nil, badFlag(c, "--plan", "", savedAllowed)
	}
	f, _, err := regular.Open(path, os.O_RDONLY)
	if err != nil {
		return nil, &inputError{source: path, err: unwrapPath(err)}
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, plan.MaxSavedBytes+1))
	var saved *plan.Saved
	if err == nil {
		saved, err = plan.DecodeSaved(data)
	}
	if err != nil {
		return nil, &inputError{source: path, err: unwrapPath(err)}
	}
	return saved, mayRun(c)
}

func flagsOf(o *plan.Options) (flags string) {
	if o.Strategy != "" {
		flags = " --strategy " + o.Strategy
	}
	for _, f := range []struct {
		given bool
		name  string
	}{{o.Recreate, "recreate"}, {o.SkipGates, "skip-gates"}, {o.AllowMassStop, "allow-mass-stop"}} {
		if f.given {
			flags += " --" + f.name
		}
	}
	return flags
}

func deploySaved(s *conn, saved *plan.Saved) error {
	d, err := newDeployer(s, saved.Options)
	if err != nil {
		return err
	}
	var all []*planned
	same, alike := true, true
	for _, one := range saved.Services {
		planner := plan.SavedPlanner{ServicePlanner: d.planner, Saved: one}
		if one.OfDomain() {
			if planner.Domain, err = s.ofDomain(s.Context); err != nil {
				return err
			}
		}
		p, err := d.planResolved(s.Context, &one.Document, &planner)
		if _, stale := errors.AsType[*plan.StaleError](err); stale {
			return refusedf("%v\nnext: rcctl plan -f FILE%s --out %s",
				refusedPlan(err), flagsOf(&saved.Options), s.String("plan"))
		}
		if err != nil {
			return refusedPlan(err)
		}
		all = append(all, p)
		whole, butNodes := one.Shows(&p.plan)
		same, alike = same && whole, alike && butNodes
	}
	about := "it does what it showed"
	switch {
	case !alike:
		about = "its records have not changed, but pods and capacity are not all as it showed"
	case !same:
		about = "it does what it showed, but pods may get other nodes"
	}
	s.printLine("the plan of %s, made by %s: %s", saved.At.Format(time.RFC3339), clean(saved.By), about)
	return carryOut(s, all)
}
