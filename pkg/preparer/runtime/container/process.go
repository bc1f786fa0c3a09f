package container

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// The limits for what a process begins with. The kernel refuses an argument or variable of 128 KiB, and 2 MiB or more
// together, also with a small stack (execve(2)).
const (
	maxTexts     = 1024
	maxTextBytes = 128<<10 - 1
	maxAllBytes  = 1 << 20
)

// initPath is where the container sees the node's init program. It is in /dev, because /dev is made for each container:
// the image needs no file there.
const initPath = "/dev/rcfarm-init"

// DefaultPath is the PATH of a container if neither the image nor the manifest has one.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	textAllowed = "text in UTF-8 of at most 131071 bytes, without a zero byte"
	envAllowed  = "NAME=value; the name without a zero byte, the value as well"
)

// isText reports whether a text can be an argument. JSON cannot have bytes that are not UTF-8.
func isText(text string) bool {
	return len(text) <= maxTextBytes && !strings.ContainsRune(text, 0) && utf8.ValidString(text)
}

// args returns the process's arguments. A command replaces the image's entrypoint together with its Cmd, because the
// Cmd has the arguments of that entrypoint.
func (in *Input) args(errs *field.Errors) []string {
	ask, image := &in.Ask, &in.Image.Config
	entrypoint, cmd := arguments{"image.Entrypoint", image.Entrypoint}, arguments{"image.Cmd", image.Cmd}
	if ask.Command != "" {
		entrypoint, cmd = arguments{"command", []string{ask.Command}}, arguments{}
	}
	if len(ask.Args) > 0 {
		cmd = arguments{"args", ask.Args}
	}
	// Checked first, because an image can have a million arguments with a mistake in each.
	if count := len(entrypoint.texts) + len(cmd.texts); count > maxTexts {
		errs.Add(cmp.Or(cmd.field, entrypoint.field), field.Text(fmt.Sprintf("%d arguments", count)),
			fmt.Sprintf("at most %d arguments", maxTexts))
		return nil
	}
	all := slices.Concat(entrypoint.named(), cmd.named())
	size := 0
	args := make([]string, 0, len(all)+2)
	if ask.Init {
		args = append(args, initPath, "--")
		if in.Node.InitProgram == "" {
			errs.Add("init", true, "false: this node has no init program")
		}
	}
	for _, arg := range all {
		size += len(arg.text)
		if !isText(arg.text) {
			errs.Add(arg.field, arg.text, textAllowed)
		}
		args = append(args, arg.text)
	}
	switch {
	case len(all) == 0:
		errs.Missing("command", "a program, because the image has neither Entrypoint nor Cmd")
	case all[0].text == "":
		errs.Add(all[0].field, "", "the name or path of a program")
	case size > maxAllBytes:
		errs.Add(all[len(all)-1].field, field.Text(fmt.Sprintf("%d arguments with %d bytes", len(all), size)),
			fmt.Sprintf("at most %d bytes together", maxAllBytes))
	}
	return args
}

// argument is one argument with the field that has it.
type argument struct{ field, text string }

// arguments are the arguments of one list with the field that has the list.
type arguments struct {
	field string
	texts []string
}

// named returns the arguments with their own fields. A command is not in a list.
func (a arguments) named() []argument {
	all := make([]argument, len(a.texts))
	for i, text := range a.texts {
		all[i] = argument{fmt.Sprintf("%s[%d]", a.field, i), text}
	}
	if a.field == "command" {
		all[0].field = a.field
	}
	return all
}

// env returns the process's environment, sorted by name. The manifest's variables replace the image's. The node's
// variables replace both. PATH, HOME and HOSTNAME have defaults.
func (in *Input) env(errs *field.Errors, who User) []string {
	env := map[string]string{"PATH": DefaultPath, "HOME": who.Home, "HOSTNAME": in.Node.Hostname}
	if count := len(in.Image.Config.Env); count > maxTexts { // with a mistake in each
		errs.Add("image.Env", field.Text(fmt.Sprintf("%d variables", count)), fmt.Sprintf("at most %d", maxTexts))
		return nil
	}
	for i, line := range in.Image.Config.Env {
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" || !isText(line) {
			errs.Add(fmt.Sprintf("image.Env[%d]", i), line, envAllowed)
			continue
		}
		env[name] = value
	}
	for _, source := range []struct {
		field string
		env   map[string]string
	}{{"env", in.Ask.Env}, {"node.env", in.Node.Env}} {
		for _, name := range slices.Sorted(maps.Keys(source.env)) {
			value := source.env[name]
			if name == "" || strings.Contains(name, "=") || !isText(name+"="+value) {
				// The value may be a secret.
				errs.Add(source.field, name, envAllowed)
				continue
			}
			env[name] = value
		}
	}
	lines, size := make([]string, 0, len(env)), 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		lines = append(lines, name+"="+env[name])
		size += len(lines[len(lines)-1])
	}
	if len(lines) > maxTexts || size > maxAllBytes {
		errs.Add("env", field.Text(fmt.Sprintf("%d variables with %d bytes", len(lines), size)),
			fmt.Sprintf("at most %d variables with %d bytes together, including those from the image", maxTexts,
				maxAllBytes))
	}
	return lines
}

// workDir returns the process's working directory. runc makes the directory if it is missing. A link of the image may
// not lead it to a directory of the kernel: behind /proc/self/fd, a runc without the repair of CVE-2024-21626 has
// directories of the node.
func (in *Input) workDir(errs *field.Errors) string {
	dir := in.workPath()
	name, value, allowed := "work_dir", dir, "an absolute path without . and .., outside /proc, /sys and /dev"
	if in.Ask.WorkDir == "" {
		name, value, allowed = "image.WorkingDir", in.Image.Config.WorkingDir, "a path outside /proc, /sys and /dev"
	}
	found := in.Files.Places[dir]
	switch {
	case dir == "/":
	case !isClean(dir) || isKernels(dir):
		errs.Add(name, value, allowed)
	case found == "":
		errs.Missing("files.places."+dir, "what ReadFiles has found")
	case isKernels(found):
		errs.Add(name, value, allowed+leads(place{path: dir, found: found}))
	}
	return dir
}

// workPath returns the working directory as it is asked for. As Docker does it, a relative path of an image begins at
// the root.
func (in *Input) workPath() string {
	if in.Ask.WorkDir != "" {
		return in.Ask.WorkDir
	}
	return path.Join("/", in.Image.Config.WorkingDir)
}

// isKernels reports whether a path is in a directory that the kernel or runc fills.
func isKernels(at string) bool {
	return slices.ContainsFunc(kernelPlaces(), func(dir string) bool { return contains(dir, at) })
}

// contains reports whether a clean path is a directory or below it.
func contains(dir, at string) bool {
	return dir == "/" || at == dir || strings.HasPrefix(at, dir+"/")
}

// RootCapabilities are the capabilities of a container that begins as root. They are enough to give files to another
// user and to become that user. Of Docker's they lack four: AUDIT_WRITE, MKNOD, NET_RAW and SETFCAP.
func RootCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETGID",
		"CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
}

// capabilities returns the process's capabilities. A process that begins as root has RootCapabilities, another has
// none. A process that is not root keeps an added capability when it executes its program, because the capability is
// also ambient.
func (in *Input) capabilities(errs *field.Errors, root bool) *specs.LinuxCapabilities {
	has := map[string]bool{}
	if root {
		for _, name := range RootCapabilities() {
			has[name] = true
		}
	}
	for i, asked := range in.Ask.Capabilities.Drop {
		name, ok := manifest.Capability(asked)
		switch {
		case asked == manifest.AllCapabilities:
			clear(has)
		case !ok:
			errs.Add(fmt.Sprintf("capabilities.drop[%d]", i), asked, "ALL, or a name of capabilities(7)")
		default:
			delete(has, name)
		}
	}
	var may []string
	for i, asked := range in.Node.Capabilities {
		name, ok := manifest.Capability(asked)
		if !ok {
			errs.Add(fmt.Sprintf("node.capabilities[%d]", i), asked, "a name of capabilities(7)")
		}
		may = append(may, name)
	}
	for i, asked := range in.Ask.Capabilities.Add {
		name, ok := manifest.Capability(asked)
		if !ok || !slices.Contains(may, name) {
			allowed := "nothing: this node lets manifests add no capability"
			if len(may) > 0 {
				allowed = field.Or(may...)
			}
			errs.Add(fmt.Sprintf("capabilities.add[%d]", i), asked, allowed)
			continue
		}
		has[name] = true
	}
	all := slices.Sorted(maps.Keys(has))
	made := &specs.LinuxCapabilities{Bounding: all, Permitted: all, Effective: all}
	if !root {
		made.Inheritable, made.Ambient = all, all
	}
	return made
}
