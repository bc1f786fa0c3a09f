package preparer

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// The environment of a pod's processes and hooks, besides what its manifest says; docs/manifest.md lists it.
const (
	envNode         = "NODE_NAME"
	envAddress      = "NODE_ADDRESS"
	envPodID        = "POD_ID"
	envHome         = "POD_HOME"
	envDigest       = "POD_DIGEST"
	envRC           = "RC_ID"
	envRole         = "POD_ROLE"
	envIndex        = "POD_INDEX"
	envLaunchable   = "LAUNCHABLE"
	envConfig       = "CONFIG_PATH"
	envHook         = "HOOK" // in hooks only
	portEnvPrefix   = "PORT_"
	volumeEnvPrefix = "VOLUME_"
	envPath         = "PATH"
	envUserHome     = "HOME"
	// defaultPath is there because next to no program starts without a PATH, and nothing is inherited.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// env is what a process of the launchable gets. The manifest's environment cannot replace what the node says, except for
// the two that programs merely expect to find.
func (p *Preparer) env(v *version, l *manifest.Launchable) map[string]string {
	env := map[string]string{envPath: defaultPath, envUserHome: p.home(v.id)}
	maps.Copy(env, l.Env)
	maps.Copy(env, p.nodeEnv(v, l))
	return env
}

// nodeEnv is what the node says of a pod. Nothing in it is the pod's choice but the names of its ports and volumes, so that
// the operator's own hooks may rely on it.
func (p *Preparer) nodeEnv(v *version, l *manifest.Launchable) map[string]string {
	env := map[string]string{
		envNode: p.cfg.Node.Name, envAddress: p.cfg.Node.Address, envPodID: v.m.ID, envHome: p.home(v.id),
		envDigest: v.in.Digest, envRC: v.id.RCID, envRole: v.id.Role, envIndex: strconv.Itoa(v.id.Index),
		envLaunchable: l.Name, envConfig: v.configPath(l),
	}
	for name, port := range v.in.Ports {
		env[portEnvPrefix+envSuffix(name)] = strconv.Itoa(port)
	}
	for _, vol := range v.m.Volumes {
		env[volumeEnvPrefix+envSuffix(vol.Name)] = p.volume(v.id, vol.Name)
	}
	return env
}

// envSuffix turns the name of a port or a volume into a part of a variable's name. No two names give the same.
func envSuffix(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

func joinEnv(env map[string]string) []string {
	lines := make([]string, 0, len(env))
	for _, key := range slices.Sorted(maps.Keys(env)) {
		lines = append(lines, key+"="+env[key])
	}
	return lines
}

func parseEnv(lines []string) map[string]string {
	env := make(map[string]string, len(lines))
	for _, line := range lines {
		key, value, _ := strings.Cut(line, "=")
		env[key] = value
	}
	return env
}
