package install

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// The environment variables that the node sets for a pod's processes and hooks. The comments of the names are copied to
// docs/reference/environment.md (make reference).
const (
	envNode    = "NODE_NAME"    // the node
	envAddress = "NODE_ADDRESS" // the address that its pods listen on
	envPodID   = "POD_ID"       // the manifest's `id`
	envRole    = "POD_ROLE"     // the replica group that the pod belongs to
	envIndex   = "POD_INDEX"    // its number in that group, from 0
	// how many replicas that group had when this version of the pod was placed; a later count changes nothing in pods
	// that run
	envReplicas = "POD_REPLICAS"
	envRC       = "RC_ID" // the controller
	// digest of the manifest that this version of the pod was made from; limits of CPU and memory may have changed
	// since
	envDigest = "POD_DIGEST"
	// the pod's own directory: kept when the pod is upgraded; removed some time after it was stopped (`--keep-stopped`
	// of the preparer)
	envHome         = "POD_HOME"
	volumeEnvPrefix = "VOLUME_"     // directory of a volume
	portEnvPrefix   = "PORT_"       // number of a port
	envLaunchable   = "LAUNCHABLE"  // name of the launchable
	envConfig       = "CONFIG_PATH" // file with the manifest's `config`
	envHook         = "HOOK"        // in hooks only: its point, such as before_stop
	// `/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`, unless `env` has another
	envPath     = "PATH"
	envUserHome = "HOME" // `POD_HOME`, unless `env` has another
	// defaultPath is set because few programs start without a PATH, and nothing is inherited.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// env returns the environment of a process. The manifest can set PATH and HOME, but not the other variables of the
// node.
func (v *Version) env(l *manifest.Launchable) map[string]string {
	env := map[string]string{envPath: defaultPath, envUserHome: v.n.home(v.ID)}
	own := v.seenEnv(l)
	for name, value := range l.Env {
		env[name] = manifest.Expand(value, own)
	}
	maps.Copy(env, own)
	return env
}

// Expand replaces the node's variables in texts of the manifest.
func (v *Version) Expand(l *manifest.Launchable, texts []string) []string {
	return manifest.ExpandAll(texts, v.seenEnv(l))
}

// seenEnv is nodeEnv as a launchable's processes see it: in a container, paths are inside.
func (v *Version) seenEnv(l *manifest.Launchable) map[string]string {
	env := v.nodeEnv(l)
	if !l.Artifact.IsImage() {
		return env
	}
	env[envHome], env[envConfig] = insideHome, insideConfig
	for _, vol := range v.M.Volumes {
		env[volumeEnvPrefix+manifest.VariableSuffix(vol.Name)] = vol.Path
	}
	return env
}

// nodeEnv returns the node's variables for a pod. The operator's own hooks can rely on the values, because the manifest
// chooses only the names of ports and volumes.
func (v *Version) nodeEnv(l *manifest.Launchable) map[string]string {
	env := map[string]string{
		envNode: v.n.cfg.Node, envAddress: v.n.cfg.Address, envPodID: v.M.ID, envHome: v.n.home(v.ID),
		envDigest: v.In.Made(), envRC: v.ID.RCID, envRole: v.ID.Role, envIndex: strconv.Itoa(v.ID.Index),
		envLaunchable: l.Name, envConfig: v.configPath(l),
	}
	if v.In.Replicas > 0 {
		env[envReplicas] = strconv.Itoa(v.In.Replicas)
	}
	for name, port := range v.In.Ports {
		env[portEnvPrefix+manifest.VariableSuffix(name)] = strconv.Itoa(port)
	}
	for _, vol := range v.M.Volumes {
		env[volumeEnvPrefix+manifest.VariableSuffix(vol.Name)] = v.n.volume(v.ID, vol.Name)
	}
	return env
}

func joinEnv(env map[string]string) []string {
	lines := make([]string, 0, len(env))
	for _, key := range slices.Sorted(maps.Keys(env)) {
		lines = append(lines, key+"="+env[key])
	}
	return lines
}

// Described has the facts about a pod that are in the environment of its processes.
type Described struct {
	PodID, Digest string
	Ports         map[string]int
	Replicas      int    // of the pod's role; zero: not known
	Path          string // the PATH
}

// Describe reads the environment of a process.
func Describe(lines []string) Described {
	env := make(map[string]string, len(lines))
	for _, line := range lines {
		key, value, _ := strings.Cut(line, "=")
		env[key] = value
	}
	d := Described{PodID: env[envPodID], Digest: env[envDigest], Ports: map[string]int{}, Path: env[envPath]}
	d.Replicas, _ = strconv.Atoi(env[envReplicas])
	for key, value := range env {
		name, isPort := strings.CutPrefix(key, portEnvPrefix)
		if n, err := strconv.Atoi(value); isPort && err == nil {
			d.Ports[strings.ReplaceAll(strings.ToLower(name), "_", "-")] = n
		}
	}
	return d
}
