package schema

import (
	"maps"
	"reflect"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// newMaker makes the schema of manifests. If unpinned is true, an archive needs no digest.
func newMaker(unpinned bool) *maker {
	fields := maps.Clone(constraints)
	if unpinned {
		fields["Artifact"] = artifact("url")
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

	"Launchable":         {"if": isExec(), "then": empty("command")},
	"Launchable.name":    nameRule(),
	"Launchable.command": of(manifest.InnerPath),
	"Launchable.args":    textList(),
	"Launchable.env": {
		"maxProperties": manifest.MaxEnv,
		"propertyNames": of(manifest.EnvName), "additionalProperties": text(),
	},
	"Launchable.user":        of(manifest.UserName),
	"Launchable.work_dir":    of(manifest.WorkPath),
	"Launchable.stop_signal": {"enum": manifest.StopSignals},

	"Artifact":        artifact("url", "sha256"),
	"Artifact.kind":   {"enum": []string{manifest.ArtifactTar, manifest.ArtifactExec}},
	"Artifact.url":    of(manifest.ArtifactURL),
	"Artifact.sha256": of(manifest.HexDigest),
	"Artifact.path":   of(manifest.AbsolutePath),

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

func empty(name string) node { return node{"properties": node{name: none()}} }

func isExec() node {
	return node{"properties": node{"artifact": node{"properties": node{"kind": node{"const": manifest.ArtifactExec}}}}}
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

// artifact requires the fields of each kind of artifact, and of an archive also the required ones.
func artifact(required ...string) node {
	archive := node{"path": none()}
	for _, name := range required {
		archive[name] = filled()
	}
	return node{
		"if": node{"properties": node{"kind": node{"const": manifest.ArtifactExec}}},
		"then": node{
			"required":   []string{"path"},
			"properties": node{"path": filled(), "url": none(), "sha256": none()},
		},
		"else": node{"required": required, "properties": archive},
	}
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
