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

// outFlag saves a plan.
func outFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "out", Usage: "save the plan in `FILE`, which only you can read, for rcctl deploy --plan",
		Action: func(c *cli.Context, path string) error {
			if path == "" || path == "-" {
				return badFlag(c, "--out", path, "the name of a file")
			}
			return nil
		},
	}
}

// savedFlag carries a saved plan out.
func savedFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "plan", Usage: "carry out the plan that rcctl plan --out saved in `FILE`, unless what it was made on has changed",
	}
}

// save writes plans to a file, and says where and for what they are.
func (d *deployer) save(all []*planned) error {
	path, epoch := d.conn.String("out"), d.rolling.State.Epoch
	if epoch == "" {
		return refusedf("--out: this cluster has no epoch that can be read, so that nothing tells it from another; " +
			"start its first farm, or deploy without a saved plan: rcctl deploy -f FILE")
	}
	saved := plan.Saved{By: d.rolling.By, At: time.Now().UTC().Truncate(time.Second), Options: d.options}
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
	if d.conn.String("output") != formats[0] { // it is read by programs
		out = d.conn.err
	}
	fmt.Fprintf(out, "saved in %s, with all values of env; "+
		"it can be carried out until documents, controllers, rollouts or the epoch change\n"+
		"next: rcctl deploy --plan %s\n", path, path)
	return nil
}

// writePrivate puts a file that only its owner can read in place of another one, or of none. Nobody can have prepared
// where the content goes, also in a directory that others may write to: the new file has a random name, and must not
// exist.
func writePrivate(path string, data []byte) (err error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return errors.New("what is there is no regular file; allowed: a new file, or a regular one to replace")
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

// readSaved reads the file that --plan names. The file says what is deployed and how: flags that would say so are
// refused.
func readSaved(c *cli.Context) (*plan.Saved, error) {
	for _, f := range slices.Concat([]cli.Flag{fileFlag(), massStopFlag()}, planFlags()) {
		if name := f.Names()[0]; c.IsSet(name) {
			return nil, usagef(c, "--plan together with --%s; allowed: one of them, a plan says what is deployed and how", name)
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

// flagsOf returns the flags that options of a plan were given by, each behind a space.
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

// deploySaved carries a saved plan out, if nothing has changed that it was made on.
func deploySaved(s *conn, saved *plan.Saved) error {
	d, err := newDeployer(s, saved.Options)
	if err != nil {
		return err
	}
	var all []*planned
	same, alike := true, true
	for _, one := range saved.Services {
		strategy := plan.SavedStrategy{RollingStrategy: d.rolling, Saved: one}
		if one.OfDomain() {
			if strategy.Domain, err = s.ofDomain(s.Context); err != nil {
				return err
			}
		}
		p, err := d.planResolved(s.Context, &one.Document, &strategy)
		if _, stale := errors.AsType[*plan.StaleError](err); stale {
			return refusedf("%v\nnext: rcctl plan -f FILE%s --out %s", refusedPlan(err), flagsOf(&saved.Options), s.String("plan"))
		}
		if err != nil {
			return refusedPlan(err)
		}
		all = append(all, p)
		whole, butNodes := one.Shows(&p.plan)
		same, alike = same && whole, alike && butNodes
	}
	about := "all is as it was shown"
	switch {
	case !alike:
		about = "what it was made on is as it was, but not all that it showed of pods and room"
	case !same:
		about = "all is as it was shown, but for nodes of pods"
	}
	fmt.Fprintf(s.out, "the plan of %s, made by %s: %s\n", saved.At.Format(time.RFC3339), clean(saved.By), about)
	return carryOut(s, all)
}
