// Package store reads and writes rcfarm's records in Consul as Go types. It has their keys, encoding and validation,
// and the transactions that write several records.
//
// # Who calls it
//
// All daemons and rcctl call it. A program makes one Store for a client and a prefix. Only the holder of a session may
// call the methods of FarmSession, NodeSession and Leader. The loops import this package and not consul, so this
// package exports consul's errors.
//
// # What it promises
//
//   - Every record is checked when it is read. For a record that cannot be parsed, or that belongs to another key,
//     there is a CorruptError. The other records are returned.
//   - A record is written only if its readers accept it (otherwise ErrInvalid), and only if it keeps Consul's limits
//     (otherwise ErrTooLarge).
//   - A Batch or a RolloutStep lands whole or not at all. It lands only while the unit's fence holds, and only if the
//     records of the controller and the rollout are unchanged (P1, P2).
//   - The transaction that places a pod on a node also changes the shares of this node, by cas (P3).
//   - ErrRefused means that nothing was written. ErrUnknown means that the write may have landed, or may still land.
//     The holder of a fence must bump the fence before it reads again (R9).
//   - Each transaction depends on the version gate. A field that is newer than the gate's version is left out, or the
//     transaction is refused (ADR 28).
//
// # The tree of its keys
//
// All keys are below one prefix, by default DefaultPrefix. <s> is one of 16 shards. docs/consul-keys.md describes each
// key. Only Keys builds these keys.
//
//	schema gate settings settled breaker incidents gone    one record each
//	rcs/<rc-id>                          a controller; names/<name> is the id of one
//	status/<rc-id>                       the owner's report
//	requests/<rc-id>/<ulid>              a request to the owner
//	manifests/<sha256>                   a manifest
//	locks/<unit>                         the lock of the unit's owner
//	bells/<s>/<unit>                     changes when something about the unit may have changed
//	drops/<unit>/<node>                  the node's count of drops
//	rollouts/<unit>                      the rollout of a service; /trouble below it
//	deployments/<service>/spec           the last document; /history/<rev> describes a revision
//	pods/<rc-id>/<role>.<index>          a placement
//	intent/<node>/<rc-id>/<role>.<index> what the node must do; reality/ has the same keys
//	nodes/<s>/<node>                     a node; nodeops/<s>/<node> has operators' settings
//	reservations/<node>                  shares of the node
//	orphans/<node>/<n>                   pods that run without an intent
//	farms/<farm-id>                      a living farm
//	heard/farms/<id> heard/nodes/<node>  when a daemon last wrote
//	audit/<ulid>                         who did what
//
// Keys that end with a slash are markers. If a watched prefix had no key at all, each write to a neighbouring key would
// end the wait of its watch.
package store
