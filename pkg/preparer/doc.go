// Package preparer is the agent of one node: it makes the node's processes match the intents that farms wrote.
//
// # Who calls it
//
// Package app creates one Preparer for each daemon. Run supervises the local pods for the life of the process. Run also
// works while Consul's servers do not answer. Serve works under one Consul session: it holds the node's lock, accepts
// intents and writes reports to Consul.
//
// # What it promises
//
//   - A pod stops only for an intent to stop whose revision is higher than every accepted revision. docs/promises.md
//     names the four exceptions. Data that is missing, old or unreadable stops no pod (P4).
//   - The preparer reports a stop only when no process of the pod runs any more and the pod's record on the disk has
//     the stop (P5).
//   - The preparer may be killed at any instant. Pods continue to run under their supervisor. The next preparer
//     continues from the records on the disk, and the processes keep their pids (P7, R12).
//
// # How it works
//
// Only Decide (decide.go) turns an intent, or a missing intent, into a verdict. An accepted intent goes into the pod's
// entry (pods.go). A worker then makes the pod's processes match the accepted intent (worker.go), and installs the
// version that the intent names (installing.go). The worker can be interrupted at any point. The pod's report is
// derived from its processes (observe.go). The table in state.go has the states of a pod, and the reasons why they
// change. The packages in the directories below do the rest. They call this package only through functions that this
// package passes to them.
//
// # The data directory
//
// The directory belongs to one daemon. The daemon's lock keeps other daemons out (R11). An <identity> is
// <rc-id>.<role>.<index>. The last column names the package that writes the path. If the column is empty, this package
// writes the path.
//
//	lock                       held while a preparer works here                          app
//	incarnations.json          sessions and services that may still be registered        app
//	host-id                    the permanent id of this directory (ADR 2)                claim
//	name.json                  the node's name, and the epoch of the store with it       claim
//	contact.json               time of the last contact with Consul's servers            claim; shim reads it
//	services-token             id of the token that the agent registered services with   register
//	pushed.json                the last push of each controller (ADR 26)                 push
//	pods/<identity>.json       a Record: accepted intent, installed versions. With stopped_at it is a tombstone
//	local/<service>.json       a service that the node runs without a controller (ADR 22)    local
//	versions/<identity>/       the pod's installed versions                              install
//	  <revision>-<digest>/     one version; digest: its first 12 digits
//	    <launchable>           link to the artifact
//	    <launchable>.json      its configuration
//	  current                  link to the version that runs
//	homes/<identity>/          the pod's own directory, kept through upgrades            install
//	logs/<identity>/           <process>.log and _hooks.log                              install, shim
//	tmp/<identity>/            the pod's /tmp                                            install
//	volumes/<identity>/<name>/ never removed; .pod-id beside the volumes names their owner    install
//	artifacts/<digest>/        an unpacked artifact, for all pods                        artifact
//	artifacts/<digest>.json    its size; the file's time is the time of the last use     artifact
//	api/socket                 logs and commands, for root and the preparer's user       nodeapi
//	shim/                      of the supervisor: lock, shim.sock, supervisor.log, and   shim
//	  state/                   a record of each process that it keeps running
//	  commands/<process>       locked while a command runs beside the process
//
// When a pod has been stopped for Config.KeepStopped, its homes, logs, tmp and versions move to the directories
// .removed/ beside them, and are deleted there. The node keeps a tombstone while an intent names the pod. It also keeps
// a tombstone for Config.KeepTombstones after the stop, or for at least a day if there are more than
// Config.MaxTombstones. A name that begins with tmp- belongs to a file or directory that is still being made. When a
// preparer starts, it removes such files and directories in artifacts.
package preparer
