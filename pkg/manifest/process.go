package manifest

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// StopSignals are the signals to end a process, which it can catch.
var StopSignals = []string{"SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGABRT"}

// maxUserID is Linux's highest user id. The next number means "no user".
const maxUserID = 1<<32 - 2

const kinds = ArtifactTar + ", " + ArtifactExec + " or " + ArtifactImage

func (l *Launchable) validate() field.Errors {
	var errs field.Errors
	errs.CheckName("name", l.Name)
	errs.Nest("artifact", l.Artifact.Validate())
	if l.Artifact.IsImage() {
		l.validateContainer(&errs)
	} else {
		l.validateProcess(&errs)
	}
	checkArgs(&errs, "args", l.Args)
	checkCount(&errs, "env", len(l.Env), 0, MaxEnv)
	for _, name := range slices.Sorted(maps.Keys(l.Env)) {
		EnvName.check(&errs, "env."+name, name)
		checkText(&errs, "env."+name, l.Env[name])
	}
	if l.Restart != nil {
		errs.Nest("restart", l.Restart.validate())
	}
	errs.Nest("resources", l.Resources.validate())
	if l.StopSignal != "" && !slices.Contains(StopSignals, l.StopSignal) {
		errs.Add("stop_signal", l.StopSignal, "one of "+strings.Join(StopSignals, ", "))
	}
	return errs
}

// validateProcess checks what is different for a launchable that runs without a container.
func (l *Launchable) validateProcess(errs *field.Errors) {
	if l.Artifact.IsOnNode() {
		checkNone(errs, "command", l.Command, "an exec artifact names its program itself")
	} else if l.Command != "" {
		InnerPath.check(errs, "command", l.Command)
	}
	checkUser(errs, UserName, l.User)
	if l.WorkDir != "" {
		WorkPath.check(errs, "work_dir", l.WorkDir)
	}
	l.noContainer(errs)
}

// noContainer refuses the fields that only images have.
func (l *Launchable) noContainer(errs *field.Errors) {
	for _, of := range []struct {
		field string
		given bool
		value any
	}{
		{"tmpfs", len(l.Tmpfs) > 0, field.Text("a list")},
		{"shm_size", l.ShmSize != 0, int64(l.ShmSize)},
		{"read_only_root", l.ReadOnlyRoot, true},
		{"capabilities", l.Capabilities != nil, field.Text("a map")},
	} {
		if of.given {
			errs.Add(of.field, of.value, "nothing: only an image runs in a container")
		}
	}
}

func (r *Resources) validate() field.Errors {
	var errs field.Errors
	checkRange(&errs, "cpu", "thousandths of a core", r.CPU, MaxCPU)
	checkRange(&errs, "memory", "bytes", r.Memory, MaxMemory)
	checkRange(&errs, "pids", "processes and threads", r.PIDs, MaxPIDs)
	return errs
}

func checkUser(errs *field.Errors, form Pattern, user string) {
	if user == "" {
		return
	}
	allowed := form.ok(user)
	for part := range strings.SplitSeq(user, ":") {
		id, err := strconv.ParseUint(part, 10, 64)
		allowed = allowed && (err != nil || id <= maxUserID)
	}
	if !allowed {
		errs.Add("user", user, form.allowed)
	}
}

func checkArgs(errs *field.Errors, path string, args []string) {
	checkCount(errs, path, len(args), 0, MaxArgs)
	for i, arg := range args {
		checkText(errs, fmt.Sprintf("%s[%d]", path, i), arg)
	}
}

// Validate returns all mistakes in the artifact.
func (a *Artifact) Validate() field.Errors {
	var errs field.Errors
	switch a.Kind {
	case "":
		errs.Missing("kind", kinds)
	case ArtifactTar:
		a.validateTar(&errs)
	case ArtifactExec:
		a.validateExec(&errs)
	case ArtifactImage:
		a.validateImage(&errs)
	default:
		errs.Add("kind", a.Kind, kinds)
	}
	return errs
}

func (a *Artifact) validateTar(errs *field.Errors) {
	u, err := url.Parse(a.URL)
	switch {
	case a.URL == "":
		errs.Missing("url", ArtifactURL.allowed)
	case err != nil, len(a.URL) > MaxTextBytes:
		errs.Add("url", a.URL, ArtifactURL.allowed)
	case u.Scheme == "file" && u.Host == "" && strings.HasPrefix(u.Path, "/") && u.RawQuery == "" && u.Fragment == "":
	case u.Scheme == "https" && u.Hostname() != "" && u.User == nil && u.Fragment == "":
	default:
		errs.Add("url", a.URL, ArtifactURL.allowed)
	}
	HexDigest.checkGiven(errs, "sha256", a.SHA256)
	checkNone(errs, "path", a.Path, "only an exec artifact has a path")
	a.noImage(errs)
}

func (a *Artifact) validateExec(errs *field.Errors) {
	AbsolutePath.checkGiven(errs, "path", a.Path)
	const why = "an exec artifact is on the node already"
	checkNone(errs, "url", a.URL, why)
	checkNone(errs, "sha256", a.SHA256, why)
	a.noImage(errs)
}

func (a *Artifact) noImage(errs *field.Errors) {
	checkNone(errs, "ref", a.Ref, "only an image has a ref")
	checkNone(errs, "platform", a.Platform, "only an image has a platform")
}

func checkNone(errs *field.Errors, path, text, why string) {
	if text != "" {
		errs.Add(path, text, "nothing: "+why)
	}
}

func (r *Restart) validate() field.Errors {
	var errs field.Errors
	if r.Policy != "" {
		field.CheckOneOf(&errs, "policy", r.Policy, RestartAlways, RestartOnFailure, RestartNever)
	}
	allowed := fmt.Sprintf("a length of time from %q to %q", MinBackoff, MaxBackoff)
	outside := func(d time.Duration) bool { return d < MinBackoff || d > MaxBackoff }
	least, most := r.BackoffMin.Or(DefaultBackoffMin), r.BackoffMax.Or(DefaultBackoffMax)
	switch {
	case outside(least):
		errs.Add("backoff_min", least.String(), allowed)
	case outside(most):
		errs.Add("backoff_max", most.String(), allowed)
	case least > most && r.BackoffMin == nil:
		errs.Add("backoff_max", most.String(),
			fmt.Sprintf("at least backoff_min, which is %q by default", DefaultBackoffMin))
	case least > most && r.BackoffMax == nil:
		errs.Add("backoff_min", least.String(),
			fmt.Sprintf("at most backoff_max, which is %q by default", DefaultBackoffMax))
	case least > most:
		errs.Add("backoff_min", least.String(), fmt.Sprintf("at most backoff_max, which is %q", most))
	}
	return errs
}
