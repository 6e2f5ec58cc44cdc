package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// restorer is one DEL under way.
type restorer struct {
	*skel.Request
	store *store
	conn  *rtnl.Conn // nil when the namespace is gone
	link  rtnl.Link  // the zero Link when it is gone
	now   place
}

// run does the work of DEL, on a thread in the container's namespace when
// there still is one.
func (r *restorer) run() error {
	if r.NS == nil {
		return r.restore()
	}
	inside := false
	err := r.NS.Do(func() error {
		inside = true
		err := r.look()
		if cni.Transient(err) {
			return err
		}
		if err != nil {
			r.Warn("%v; nothing is restored", err)
		}
		return r.restore()
	})
	if inside || cni.Transient(err) {
		return err
	}
	r.Warn("%v; nothing is restored", err)
	return r.restore()
}

// look sees to which namespace CNI_NETNS leads by now.
func (r *restorer) look() error {
	conn, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	r.OnDone(func() { _ = conn.Close() })
	link, err := conn.Link(r.IfName)
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	if r.now, err = findPlace(r.NS, link); err != nil {
		return err
	}
	r.conn, r.link = conn, link
	return nil
}

// restore puts back what the attachment's records say and removes them.
func (r *restorer) restore() error {
	names, err := r.store.names(r.Hash(), "", "")
	if err != nil {
		return err
	}
	own, err := r.store.read(names)
	if err != nil {
		return err
	}
	if len(own) == 0 {
		if err := r.restoreForeign(names); err != nil {
			return err
		}
	}
	since, err := r.overwritten(own)
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range own {
		before, err := r.store.handOver(rec)
		errs = append(errs, err)
		if r.conn != nil && rec.Place.isNow(r.now) {
			if rec.Place.Link != r.now.Link { // another interface has the name now
				before = before.withoutLink(r.IfName)
			}
			errs = append(errs, r.apply(before))
		}
	}
	errs = append(errs, r.apply(since))
	if cni.Transient(errors.Join(errs...)) {
		return errors.Join(errs...) // the repetition needs the records
	}
	for _, name := range names {
		errs = append(errs, r.store.remove(name, backupName(r.Attachment)))
	}
	return errors.Join(errs...)
}

// overwritten is what the backup file says where the reference plugin served DEL and another
// ADD after our records: it knows only the file. Nothing when one of them is about the
// interface that is there now.
func (r *restorer) overwritten(own []record) (since originals, err error) {
	current := func(rec record) bool { return rec.Place.isNow(r.now) && rec.Place.Link == r.now.Link }
	if len(own) == 0 || r.conn == nil || slices.ContainsFunc(own, current) {
		return since, nil
	}
	name := backupName(r.Attachment)
	all, err := r.store.find("", backupHash(name), "")
	if err != nil {
		return since, err
	}
	before, ok, err := r.store.backup(name)
	switch {
	case cni.Transient(err):
		return since, err
	case err != nil:
		r.Warn("%v; nothing is restored", err)
	case ok && !before.equal(combine(all)) && r.isOurs(before):
		return before, nil
	}
	return since, nil
}

// restoreForeign restores from a backup file without a record, which the
// reference plugin wrote, and removes it. broken are records of ours that
// cannot be read.
func (r *restorer) restoreForeign(broken []string) error {
	name := backupName(r.Attachment)
	others, err := r.store.names("", backupHash(name), "")
	if err != nil || len(others) > len(broken) { // another network's
		return err
	}
	before, ok, err := r.store.backup(name)
	switch {
	case cni.Transient(err):
		return err
	case err != nil:
		r.Warn("%v; nothing is restored", err)
	case ok && r.conn != nil && r.isOurs(before):
		if err := r.apply(before); err != nil {
			return err
		}
	}
	return r.store.backups.Remove(name)
}

// isOurs decides whether the namespace is still the one that a backup file
// without a record is about: its interface has the MAC address of prevResult
// or, where prevResult says none, every value of the file is now what the
// configuration makes of it.
func (r *restorer) isOurs(before originals) bool {
	if r.link.Index == 0 {
		return false
	}
	if r.PrevResult != nil {
		for _, i := range r.PrevResult.Interfaces {
			if i.Name == r.IfName && i.Sandbox != "" && i.MAC != "" {
				return strings.EqualFold(i.MAC, r.link.MAC.String())
			}
		}
	}
	cfg, err := parseConfig(r.Request)
	if err != nil || len(cfg.Link.steps(r.link)) > 0 {
		return false
	}
	configured := cfg.Link.of(r.link)
	before.handLink(&configured)
	return !cfg.Link.empty() && before.linkEmpty()
}

// apply restores values, sysctls last and in reverse, as ADD wrote them first.
// What cannot be restored is reported, and DEL goes on; an error says that its
// repetition may have more success.
func (r *restorer) apply(before originals) error {
	var errs []error
	failed := func(err error) {
		if cni.Transient(err) {
			errs = append(errs, err)
		} else {
			r.Warn("%v", err)
		}
	}
	for _, s := range before.steps(r.link, r.Warn) {
		err := r.conn.SetLink(r.link.Index, s.set)
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			failed(fmt.Errorf("restore %s %s: %w", s.key, s.value, err))
		}
	}
	for _, p := range slices.Backward(before.Sysctls) {
		key, err := sysctl.Parse(p.Key)
		if err == nil {
			err = key.Write(p.Value)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed(fmt.Errorf("restore: %w", err))
		}
	}
	return errors.Join(errs...)
}

// steps lists what must change of link, in the order of the reference plugin.
func (o originals) steps(link rtnl.Link, warn func(string, ...any)) []step {
	if link.Index == 0 {
		return nil
	}
	var all []step
	if o.MTU != 0 && o.MTU != link.MTU {
		all = append(all, step{key: "mtu", value: fmt.Sprint(o.MTU), set: rtnl.Change{MTU: o.MTU}})
	}
	if o.MAC != "" && !strings.EqualFold(o.MAC, link.MAC.String()) {
		if mac, err := net.ParseMAC(o.MAC); err == nil {
			all = append(all, step{key: "mac", value: o.MAC, set: rtnl.Change{MAC: mac}})
		} else {
			warn("restore mac %q: %v", o.MAC, err)
		}
	}
	if o.Promisc != nil && *o.Promisc != link.Promisc {
		all = append(all, step{key: "promisc", value: fmt.Sprint(*o.Promisc), set: rtnl.Change{Promisc: o.Promisc}})
	}
	if o.AllMulti != nil && *o.AllMulti != link.AllMulti {
		all = append(all, step{key: "allmulti", value: fmt.Sprint(*o.AllMulti), set: rtnl.Change{AllMulti: o.AllMulti}})
	}
	if o.TxQLen != nil && *o.TxQLen != link.TxQLen {
		all = append(all, step{key: "txQLen", value: fmt.Sprint(*o.TxQLen), set: rtnl.Change{TxQLen: o.TxQLen}})
	}
	return all
}
