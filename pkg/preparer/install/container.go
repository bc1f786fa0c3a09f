package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
	"github.com/rcfarm/rcfarm/pkg/preparer/image/overlay"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
)

// Where a container sees its pod's home, and its configuration file.
const (
	insideHome   = "/pod/home"
	insideConfig = "/pod/config.json"
)

// Directories below Config.Dir for containers.
const (
	containersDir = "containers"  // has one entry for each process: see runtime.Container.Dir
	lookDir       = "images/look" // layers are mounted here to read files of an image
)

// containerOf returns what runs a launchable with an image. dir is the directory that the runtime makes for the
// process.
func (v *Version) containerOf(l *manifest.Launchable, dir string) (*container.Container, *runtime.Container, error) {
	img, ok := v.images[l.Name]
	if !ok {
		return nil, nil, fmt.Errorf("image of %s: not fetched", l.Name)
	}
	in, err := v.containerInput(l, &img, dir)
	if err != nil {
		return nil, nil, err
	}
	if in.Files, err = readImage(filepath.Join(v.n.cfg.Dir, lookDir), img.Layers, in.MountPaths()); err != nil {
		err = fmt.Errorf("image of %s: %w", l.Name, err)
		if errors.Is(err, container.ErrLink) {
			err = forGood(err)
		}
		return nil, nil, err
	}
	made, err := container.Build(in)
	if err != nil {
		return nil, nil, forGood(fmt.Errorf("container of %s: %w", l.Name, err))
	}
	config, err := json.Marshal(made.Spec)
	if err != nil {
		return nil, nil, fmt.Errorf("container of %s: %w", l.Name, err)
	}
	c := &runtime.Container{
		Config: config, Dir: dir, Layers: img.Layers, UID: int(made.UID), GID: int(made.GID),
		Scratch: len(in.Node.Scratch),
	}
	if ids := in.Node.IDs; ids != nil {
		c.IDs = &runtime.IDs{First: ids.First, Size: ids.Size}
	}
	return made, c, nil
}

func (v *Version) containerInput(l *manifest.Launchable, img *image.Image, dir string) (container.Input, error) {
	ids, err := v.n.blockOf(v.ID)
	if err != nil {
		return container.Input{}, err
	}
	node := container.Node{
		Root: filepath.Join(dir, "rootfs"), Cgroup: "/pod", // the runtime sets another one
		Number: v.uid, AllowRoot: v.n.cfg.Isolation.AllowRoot, Capabilities: v.n.cfg.Capabilities,
		Hostname: hostname(v.ID.String()), Hosts: filepath.Join(dir, "hosts"),
		ResolvConf: filepath.Join(dir, "resolv.conf"), Env: v.seenEnv(l),
	}
	if ids != nil {
		node.IDs = &container.IDs{First: ids.First, Size: ids.Size}
	}
	ask := v.ask(l)
	for i, at := range container.ScratchPaths(img.Config.Volumes, &ask) {
		if node.Scratch == nil {
			node.Scratch = map[string]string{}
		}
		node.Scratch[at] = filepath.Join(dir, "scratch", strconv.Itoa(i))
	}
	return container.Input{Image: imagespec.Image{Config: img.Config}, Ask: ask, Node: node}, nil
}

// ask returns what the manifest asks for, with home and configuration as the node's own volumes.
func (v *Version) ask(l *manifest.Launchable) container.Ask {
	ask := container.Ask{
		Command: l.Command, Args: v.Expand(l, l.Args), Env: map[string]string{}, WorkDir: l.WorkDir, User: l.User,
		Volumes: []container.Volume{
			{Path: insideHome, Source: v.n.home(v.ID)},
			{Path: insideConfig, Source: v.configPath(l), ReadOnly: true},
		},
	}
	for _, vol := range v.M.Volumes {
		ask.Volumes = append(ask.Volumes,
			container.Volume{Path: vol.Path, Source: v.n.volume(v.ID, vol.Name), ReadOnly: vol.ReadOnly})
	}
	for _, t := range l.Tmpfs {
		ask.Tmpfs = append(ask.Tmpfs, container.Tmpfs{Path: t.Path, Size: int64(t.Size)})
	}
	ask.ShmSize, ask.ReadOnlyRoot = int64(l.ShmSize), l.ReadOnlyRoot
	if c := l.Capabilities; c != nil {
		ask.Capabilities = container.Capabilities{Add: c.Add, Drop: c.Drop}
	}
	own := v.seenEnv(l)
	for name, value := range l.Env {
		ask.Env[name] = manifest.Expand(value, own)
	}
	return ask
}

// maxHostname is the kernel's limit in bytes (sethostname(2)).
const maxHostname = 64

// hostname replaces what a host name cannot have.
func hostname(text string) string {
	name := []byte(text[:min(len(text), maxHostname)])
	for i, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		default:
			name[i] = '-'
		}
	}
	return string(name)
}

// readImage reads what Build must know about an image's files. It mounts the layers at dir, in a mount namespace that
// ends with the call.
func readImage(dir string, layers, paths []string) (files container.Files, err error) {
	if len(layers) == 1 { // the kernel mounts no single layer read-only
		return container.ReadFiles(layers[0], paths)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return files, fmt.Errorf("make a directory to look into images: %w", err)
	}
	err = overlay.Apart(func() error {
		if err := overlay.Mount(dir, overlay.Layers{Lower: layers}); err != nil {
			return err
		}
		var err error
		files, err = container.ReadFiles(dir, paths)
		return err
	})
	return files, err
}
