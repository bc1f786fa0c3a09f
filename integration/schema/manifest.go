package schema

import (
	"maps"
	"reflect"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// newMaker makes the schema of manifests. If unpinned is true, an archive needs no digest.
func newMaker(unpinned bool) *maker {
	fields := maps.Clone(constraints)
	if unpinned {
		fields["Artifact"] = artifact(true)
	}
	quantity := node{"type": []string{"integer", "string"}, "pattern": quantityText}
	return &maker{
		rules: map[string]map[string]node{packageOf[manifest.Manifest](): fields},
		types: map[reflect.Type]node{
			reflect.TypeFor[manifest.Millicores](): quantity, reflect.TypeFor[manifest.Bytes](): quantity,
			reflect.TypeFor[manifest.Config](): {
				"type":                 "object",
				"additionalProperties": node{"$ref": "#/$defs/tree"},
			},
		},
		defs: node{"tree": treeSchema()}, texts: texts{},
	}
}

// constraints has the rules that do not follow from Go types, by struct and JSON name. Rules under a struct alone are
// about fields that depend on each other.
var constraints = map[string]node{
	"Manifest.version":     {"const": manifest.Version},
	"Manifest.id":          nameRule(),
	"Manifest.launchables": {"minItems": 1, "maxItems": manifest.MaxLaunchables},
	"Manifest.config":      {"not": node{"required": []string{manifest.FileKey}}},
	"Manifest.ports":       {"maxItems": manifest.MaxPorts},
	"Manifest.volumes":     {"maxItems": manifest.MaxVolumes},
	"Manifest.labels":      labelRule(),

	"Manifest": {
		"if":   node{"properties": node{"launchables": node{"contains": hasKind(manifest.ArtifactImage)}}},
		"then": volumes(node{"required": []string{"path"}}),
		"else": volumes(node{"properties": node{"path": none(), "read_only": node{"const": false}}}),
	},

	"Launchable":      {"allOf": []any{launchable(), container()}},
	"Launchable.name": nameRule(),
	"Launchable.args": textList(),
	"Launchable.env": {
		"maxProperties": manifest.MaxEnv,
		"propertyNames": of(manifest.EnvName), "additionalProperties": text(),
	},
	"Launchable.tmpfs":       {"maxItems": manifest.MaxTmpfs},
	"Launchable.shm_size":    {"minimum": 0, "maximum": manifest.MaxMemory},
	"Launchable.stop_signal": {"enum": manifest.StopSignals},

	"Artifact":        artifact(false),
	"Artifact.kind":   {"enum": []string{manifest.ArtifactTar, manifest.ArtifactExec, manifest.ArtifactImage}},
	"Artifact.url":    of(manifest.ArtifactURL),
	"Artifact.sha256": of(manifest.HexDigest),
	"Artifact.path":   of(manifest.AbsolutePath),

	"Artifact.ref":      of(manifest.ImageRef),
	"Artifact.platform": of(manifest.Platform),
	"Tmpfs.path":        of(manifest.AbsolutePath),
	"Tmpfs.size":        {"minimum": 0, "maximum": manifest.MaxMemory},
	"Capabilities.add":  {"items": capability("")},
	"Capabilities.drop": {"items": capability("^" + manifest.AllCapabilities + "$|")},

	"Restart.policy": {"enum": []string{
		string(manifest.RestartAlways),
		string(manifest.RestartOnFailure), string(manifest.RestartNever),
	}},

	"Resources.cpu":    {"minimum": 0, "maximum": manifest.MaxCPU},
	"Resources.memory": {"minimum": 0, "maximum": manifest.MaxMemory},
	"Resources.pids":   {"minimum": 0, "maximum": manifest.MaxPIDs},

	"Port": {
		"if":   node{"required": []string{"dynamic"}, "properties": node{"dynamic": node{"const": true}}},
		"then": node{"properties": node{"port": node{"const": 0}}},
		"else": node{"required": []string{"port"}, "properties": node{"port": node{"minimum": 1}}},
	},
	"Port.name": nameRule(),
	"Port.port": {"minimum": 0, "maximum": 65535},

	"Health":                   {"oneOf": []any{given("http"), given("tcp"), given("script")}},
	"Health.success_threshold": {"minimum": 0, "maximum": manifest.MaxThreshold},
	"Health.failure_threshold": {"minimum": 0, "maximum": manifest.MaxThreshold},
	"HTTPCheck.port":           nameRule(),
	"HTTPCheck.path":           {"pattern": `^/[^#\x00-\x20\x7f]*$`, "maxLength": manifest.MaxTextBytes},
	"TCPCheck.port":            nameRule(),
	"ScriptCheck.launchable":   nameRule(),
	"ScriptCheck.path":         of(manifest.WorkPath),
	"ScriptCheck.args":         textList(),
	"Hook.launchable":          nameRule(),
	"Hook.path":                of(manifest.WorkPath),
	"Hook.args":                textList(),

	"Service.name": nameRule(),
	"Service.port": nameRule(),
	"Service.tags": {
		"maxItems": manifest.MaxTags,
		"items":    node{"type": "string", "pattern": manifest.ServiceTag.String()},
	},
	"Service.meta": {
		"maxProperties": manifest.MaxMeta, "propertyNames": of(manifest.MetaKey),
		"additionalProperties": node{"type": "string", "pattern": manifest.MetaValue.String()},
	},

	"Volume.name": nameRule(),
	"Volume.path": of(manifest.AbsolutePath),
}

func of(p manifest.Pattern) node {
	return node{"pattern": p.String(), "maxLength": manifest.MaxTextBytes}
}

func nameRule() node { return node{"pattern": field.NamePattern, "maxLength": field.MaxName} }

func text() node {
	return node{"type": "string", "pattern": `^[^\x00]*$`, "maxLength": manifest.MaxTextBytes}
}
func textList() node { return node{"maxItems": manifest.MaxArgs, "items": text()} }
func filled() node   { return node{"minLength": 1} }
func none() node     { return node{"maxLength": 0} }

func given(name string) node {
	return node{"required": []string{name}, "properties": node{name: node{"type": "object"}}}
}

func hasKind(kind string) node {
	return node{"properties": node{"artifact": node{"properties": node{"kind": node{"const": kind}}}}}
}

// volumes has a rule for each volume of a pod.
func volumes(rule node) node { return node{"properties": node{"volumes": node{"items": rule}}} }

// optionalOf is the rule of a field that may be empty.
func optionalOf(p manifest.Pattern) node {
	return node{"pattern": "^$|" + p.String(), "maxLength": manifest.MaxTextBytes}
}

// launchable requires the forms that texts of each kind of artifact have.
func launchable() node {
	forms := func(command node, user, workDir manifest.Pattern) node {
		return node{"properties": node{"command": command, "user": optionalOf(user), "work_dir": optionalOf(workDir)}}
	}
	return node{
		"if":   hasKind(manifest.ArtifactImage),
		"then": forms(optionalOf(manifest.ImageCommand), manifest.ImageUser, manifest.AbsolutePath),
		"else": node{
			"if":   hasKind(manifest.ArtifactExec),
			"then": forms(none(), manifest.UserName, manifest.WorkPath),
			"else": forms(optionalOf(manifest.InnerPath), manifest.UserName, manifest.WorkPath),
		},
	}
}

// container forbids the fields of containers for other artifacts than images.
func container() node {
	return node{
		"if": hasKind(manifest.ArtifactImage),
		"else": node{"properties": node{
			"tmpfs": node{"maxItems": 0}, "shm_size": node{"const": 0}, "read_only_root": node{"const": false},
			"capabilities": node{"type": "null"}, "init": node{"const": false},
		}},
	}
}

// capability is the rule for a name of a capability. before has alternatives.
func capability(before string) node {
	return node{"type": "string", "pattern": before + manifest.CapabilityName.String()}
}

const labelPart = `[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`

// labelKeyRule is the rule for a label's key, in Kubernetes' syntax.
func labelKeyRule() node {
	return node{"pattern": `^(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?` + labelPart + `$`}
}

// labelRule is the rule for labels, without the reserved keys.
func labelRule(reserved ...string) node {
	key := labelKeyRule()
	if len(reserved) > 0 {
		key["not"] = node{"enum": reserved}
	}
	return node{
		"maxProperties": manifest.MaxLabels, "propertyNames": key,
		"additionalProperties": node{"type": "string", "pattern": `^(?:` + labelPart + `)?$`},
	}
}

// artifact requires the fields of each kind of artifact, and their digests unless unpinned is true.
func artifact(unpinned bool) node {
	rule := func(kind string, required node, optional ...string) node {
		fields := maps.Clone(required)
		for _, name := range []string{"url", "sha256", "path", "ref", "platform"} {
			if required[name] == nil && !slices.Contains(optional, name) {
				fields[name] = none()
			}
		}
		return node{
			"if":   node{"properties": node{"kind": node{"const": kind}}},
			"then": node{"required": slices.Sorted(maps.Keys(required)), "properties": fields},
		}
	}
	archive, image := node{"url": filled(), "sha256": filled()}, node{"ref": node{"pattern": "@sha256:"}}
	if unpinned {
		archive, image = node{"url": filled()}, node{"ref": filled()}
	}
	return node{"allOf": []any{
		rule(manifest.ArtifactTar, archive, "sha256"),
		rule(manifest.ArtifactExec, node{"path": filled()}),
		rule(manifest.ArtifactImage, image, "platform"),
	}}
}

// quantityText matches what resource.ParseQuantity reads.
const quantityText = `^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$`

// treeSchema matches any value below the top of the configuration.
func treeSchema() node {
	self := node{"$ref": "#/$defs/tree"}
	return node{"anyOf": []any{
		node{"type": []string{"string", "number", "boolean", "null"}},
		node{"type": "array", "items": self},
		node{"type": "object", "additionalProperties": self, "not": node{"required": []string{manifest.FileKey}}},
		node{
			"type": "object", "required": []string{manifest.FileKey}, "additionalProperties": false,
			"properties": node{manifest.FileKey: node{
				"type": "string", "pattern": manifest.AbsolutePath.String(),
				"maxLength": manifest.MaxTextBytes,
			}},
		},
	}}
}
