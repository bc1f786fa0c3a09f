package install

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// The environment of a pod's processes and hooks, besides what its manifest says. What stands behind each is docs/reference/environment.md.
const (
	envNode         = "NODE_NAME"    // the node
	envAddress      = "NODE_ADDRESS" // the address that its pods listen on
	envPodID        = "POD_ID"       // the manifest's `id`
	envRole         = "POD_ROLE"     // the replica group that the pod belongs to
	envIndex        = "POD_INDEX"    // its number in that group, from 0
	envReplicas     = "POD_REPLICAS" // how many replicas that group had when this version of the pod was placed; a later count changes nothing in pods that run
	envRC           = "RC_ID"        // the controller
	envDigest       = "POD_DIGEST"   // digest of the manifest that this version of the pod was made from; limits of CPU and memory may have changed since
	envHome         = "POD_HOME"     // the pod's own directory: stays when the pod is upgraded; removed some time after it was stopped (`--keep-stopped` of the preparer)
	volumeEnvPrefix = "VOLUME_"      // directory of a volume
	portEnvPrefix   = "PORT_"        // number of a port
	envLaunchable   = "LAUNCHABLE"   // name of the launchable
	envConfig       = "CONFIG_PATH"  // file with the manifest's `config`
	envHook         = "HOOK"         // in hooks only: the point that it stands at
	envPath         = "PATH"         // `/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`, unless `env` says otherwise
	envUserHome     = "HOME"         // `POD_HOME`, unless `env` says otherwise
	// defaultPath is there because next to no program starts without a PATH, and nothing is inherited.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// env is what a process of the launchable gets. The manifest's environment cannot replace what the node says, except for
// the two that programs merely expect to find.
func (v *Version) env(l *manifest.Launchable) map[string]string {
	env := map[string]string{envPath: defaultPath, envUserHome: v.n.home(v.ID)}
	own := v.nodeEnv(l)
	for name, value := range l.Env {
		env[name] = manifest.Expand(value, own)
	}
	maps.Copy(env, own)
	return env
}

// Expand replaces the node's variables in texts of the manifest, as they are for the launchable.
func (v *Version) Expand(l *manifest.Launchable, texts []string) []string {
	return manifest.ExpandAll(texts, v.nodeEnv(l))
}

// nodeEnv is what the node says of a pod. Nothing in it is the pod's choice but the names of its ports and volumes, so that
// the operator's own hooks may rely on it.
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

// Described is what the environment of a process says of its pod.
type Described struct {
	PodID, Digest string
	Ports         map[string]int
	Replicas      int    // of its role; zero: it does not say
	Path          string // where its programs are looked for
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
