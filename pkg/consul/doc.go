// Package consul has all access of rcfarm to Consul: reads, watches, transactions, sessions, fenced locks, the local
// agent and the catalog. No other package imports Consul's API client.
//
// # Who calls it
//
//   - Package store calls it for the records of the cluster.
//   - Package election calls it for leases.
//   - Package app calls it for the sessions of the daemons.
//   - Package preparer/register calls it for services at a node's agent.
//   - Programs that take part in an election, or that own one controller, import it for the Client and its RunSession.
//
// This package knows no keys and no records.
//
// # What it promises
//
//   - RunSession runs a role only while the servers confirm its session. The role's context ends with ErrLost in time,
//     even if the process was suspended or its machine slept. An answer of the local agent confirms nothing.
//   - A Fence is two conditions on a lock: its session and its index. Consul refuses a transaction with the fence of an
//     earlier tenure, even if the transaction arrives very late (P1). Bump changes the index on purpose.
//   - A transaction is done, or refused without a write (RefusedError), or its outcome is unknown (ErrUnknown): it was
//     carried out, or will be later, or never will be. After an unknown outcome, this package does not send the same
//     write again. Only the acquisition of a lock is repeated: each attempt writes another value (R9).
//   - A watch delivers whole snapshots, so its receiver sees deletions. It reports when the store went back in time
//     (Snapshot.WentBack).
//   - If ACLs have filtered an answer, the result is ErrFiltered, never an empty list (P4).
//   - One client has at most Config.MaxConns and LivenessConns connections to its agent (P8). A Merger sends the
//     operations of many callers in few requests.
//
// Each fact about Consul that the code relies on has a test against a real server in facts_*_test.go.
//
// # What it registers
//
// RunSession registers these at Consul while it runs. After a kill, the next run finds the remains by the incarnations
// in its Journal (R11). <incarnation> is a ULID, new for each session.
//
//	service rcfarm-<kind>                     at the local agent; with ByTTL none
//	  id    rcfarm-<kind>-<name>-<incarnation>
//	  check rcfarm-<kind>-<name>-<incarnation>-ttl    passes while the process lives
//	session rcfarm/<kind>/<name>@<scope>      two, bound to that check and to serfHealth: Consul releases the locks
//	                                          of one when it ends, and deletes the keys of the other
//	session rcfarm/<kind>/<name>@<scope>/<incarnation>    the same two with ByTTL, bound to nothing
//
// # Where to read on
//
//	session.go           the life of a session
//	incarnation.go       the parts of a session
//	fence.go             the locks
//	txn.go               transactions and their outcomes
//	watch.go             the rules for Consul's index
//	merge.go gather.go   the merging of requests
//	tap.go               the reading of large answers
package consul
