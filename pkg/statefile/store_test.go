package statefile_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

type lease struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

func (l lease) Hash() string { return l.Name }

func (l lease) Valid() bool { return l.Address != "everywhere" }

var _ = Describe("a store", func() {
	var path string
	BeforeEach(func() { path = filepath.Join(GinkgoT().TempDir(), "run", "leases") })

	reopen := func() *statefile.Store[lease] {
		GinkgoHelper()
		s, err := statefile.Records[lease]{Path: path, Wait: time.Second}.Open(context.Background())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(s.Close)
		return s
	}
	// get expects Get to succeed.
	get := func(s *statefile.Store[lease], name string) (lease, bool) {
		GinkgoHelper()
		l, ok, err := s.Get(name)
		Expect(err).NotTo(HaveOccurred())
		return l, ok
	}

	It("has no record, and none to drop, where a directory is in its place", func() {
		Expect(os.MkdirAll(path+"/a1.json/x", 0o700)).To(Succeed())
		s := reopen()
		_, ok := get(s, "a1")
		Expect(ok).To(BeFalse())
		Expect(s.Drop("a1")).To(Succeed())
		Expect(path + "/a1.json/x").To(BeADirectory())
	})

	It("keeps a record in a file until it is dropped", func() {
		s := reopen()
		Expect(s.Put(lease{"a1", "192.0.2.1"})).To(Succeed())
		Expect(s.Put(lease{"a1", "192.0.2.2"})).To(Succeed())
		Expect(s.Put(lease{"b2", "192.0.2.3"})).To(Succeed())
		Expect(s.Close()).To(Succeed())
		Expect(s.Close()).To(Succeed())
		Expect(os.ReadFile(path + "/a1.json")).To(MatchJSON(`{"name": "a1", "address": "192.0.2.2"}`))
		info, err := os.Stat(path)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode().Perm()).To(BeEquivalentTo(0o700))

		s = reopen()
		Expect(s.All()).To(Equal([]*lease{{"a1", "192.0.2.2"}, {"b2", "192.0.2.3"}}))
		Expect(s.Drop("a1")).To(Succeed())
		Expect(s.Drop("a1")).To(Succeed())
		_, ok := get(s, "a1")
		Expect(ok).To(BeFalse())
		Expect(s.All()).To(HaveLen(1))
	})

	It("that is absent has no record, and is made by Open alone", func() {
		s, err := statefile.Records[lease]{Path: path, Wait: time.Second}.OpenExisting(context.Background())
		Expect(err).NotTo(HaveOccurred())
		_, ok := get(s, "a1")
		Expect(ok).To(BeFalse())
		Expect(s.All()).To(BeEmpty())
		Expect(s.Drop("a1")).To(Succeed())
		Expect(s.Put(lease{Name: "a1"})).To(MatchError(fs.ErrClosed))
		Expect(s.Close()).To(Succeed())
		Expect(path).NotTo(BeADirectory())

		Expect(reopen().Put(lease{"a1", "192.0.2.1"})).To(Succeed())
	})

	It("takes a file that it cannot have written for no record", func() {
		s := reopen()
		Expect(os.WriteFile(path+"/torn.json", []byte(`{"name": "torn", "address": "192.`), 0o600)).To(Succeed())
		Expect(os.WriteFile(path+"/half.json", []byte(`{"name": "half", "address": 7}`), 0o600)).To(Succeed())
		Expect(os.WriteFile(path+"/moved.json", []byte(`{"name": "a1"}`), 0o600)).To(Succeed())
		Expect(os.WriteFile(path+"/false.json", []byte(`{"name": "false", "address": "everywhere"}`), 0o600)).
			To(Succeed())
		Expect(os.Mkdir(path+"/dir.json", 0o700)).To(Succeed())
		Expect(os.Symlink("/etc/passwd", path+"/link.json")).To(Succeed())
		Expect(os.WriteFile(path+"/notes", []byte(`{}`), 0o600)).To(Succeed())
		for _, name := range []string{"torn", "half", "moved", "false", "dir", "link"} {
			l, ok := get(s, name)
			Expect(ok).To(BeFalse(), name)
			Expect(l).To(BeZero(), name)
		}
		Expect(s.All()).To(BeEmpty())
	})

	It("is never a link", func() {
		Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
		Expect(os.Symlink(GinkgoT().TempDir(), path)).To(Succeed())
		_, err := statefile.Records[lease]{Path: path, Wait: time.Second}.Open(context.Background())
		Expect(err).To(MatchError(ContainSubstring("open " + path + ": not a directory")))
		s, err := statefile.Records[lease]{Path: path, Wait: time.Second}.OpenExisting(context.Background())
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Put(lease{Name: "a1"})).To(MatchError(fs.ErrClosed))
	})

	It("refuses a name that leads elsewhere", func() {
		s := reopen()
		Expect(s.Put(lease{Name: "../x"})).To(MatchError(fs.ErrInvalid))
		Expect(s.Drop("../x")).To(MatchError(fs.ErrInvalid))
		_, _, err := s.Get("../x")
		Expect(err).To(MatchError(fs.ErrInvalid))
	})

	It("takes away what a killed writer left, with the record or with all", func() {
		s := reopen()
		for _, clean := range []func() error{
			func() error { return s.Drop("a1") }, func() error { return second(s.All()) },
		} {
			Expect(os.WriteFile(path+"/"+statefile.Temporary("a1.json"), []byte("half"), 0o600)).To(Succeed())
			Expect(clean()).To(Succeed())
			Expect(entries(path)).To(Equal([]string{"lock"}))
		}
	})

	It("that is locked is given up at the deadline", func() {
		s := reopen()
		_, err := statefile.Records[lease]{Path: path, Wait: 20 * time.Millisecond}.OpenExisting(context.Background())
		Expect(err).To(MatchError(statefile.ErrBusy))
		Expect(err).To(MatchError(ContainSubstring("held by process")))
		Expect(s.Close()).To(Succeed())
		Expect(reopen().Close()).To(Succeed())
	})
})

var _ = Describe("records", func() {
	var records statefile.Records[lease]
	BeforeEach(func() {
		path := filepath.Join(GinkgoT().TempDir(), "run", "leases")
		records = statefile.Records[lease]{Path: path, Wait: time.Second}
	})
	// get expects Get to succeed.
	get := func(name string) (lease, bool) {
		GinkgoHelper()
		l, ok, err := records.Get(name)
		Expect(err).NotTo(HaveOccurred())
		return l, ok
	}
	isAt := func(address string) func(lease) bool { return func(l lease) bool { return l.Address == address } }

	It("are those of the store, which is open for one call", func(ctx SpecContext) {
		Expect(records.Put(ctx, lease{"a1", "192.0.2.1"})).To(Succeed())
		Expect(records.Put(ctx, lease{"b2", "192.0.2.2"})).To(Succeed())
		Expect(os.ReadFile(records.Path + "/a1.json")).To(MatchJSON(`{"name": "a1", "address": "192.0.2.1"}`))
		l, ok := get("a1")
		Expect(ok).To(BeTrue())
		Expect(l).To(Equal(lease{"a1", "192.0.2.1"}))
		Expect(records.All(ctx)).To(Equal([]*lease{{"a1", "192.0.2.1"}, {"b2", "192.0.2.2"}}))
		Expect(records.Any(isAt("192.0.2.2"))).To(BeTrue())
		Expect(records.Any(isAt("192.0.2.3"))).To(BeFalse())
		Expect(records.Drop(ctx, "a1", "a1", "b2")).To(Succeed())
		Expect(entries(records.Path)).To(Equal([]string{"lock"}))
	})

	It("are none where there is no directory, and only Put makes it", func(ctx SpecContext) {
		_, ok := get("a1")
		Expect(ok).To(BeFalse())
		Expect(records.All(ctx)).To(BeEmpty())
		Expect(records.Any(isAt(""))).To(BeFalse())
		Expect(records.Drop(ctx, "a1")).To(Succeed())
		Expect(records.Path).NotTo(BeADirectory())
	})

	It("are all dropped, also those after an error", func(ctx SpecContext) {
		Expect(records.Put(ctx, lease{"b2", "192.0.2.2"})).To(Succeed())
		Expect(records.Drop(ctx, "../x", "b2")).To(MatchError(fs.ErrInvalid))
		Expect(records.All(ctx)).To(BeEmpty())
	})

	It("are read without the lock, and tell whether there may be one to drop", func(ctx SpecContext) {
		Expect(records.HasFile("a1")).To(BeFalse())
		Expect(records.Put(ctx, lease{"a1", "192.0.2.1"})).To(Succeed())
		s, err := records.Open(ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(s.Close)
		_, ok := get("a1")
		Expect(ok).To(BeTrue())
		Expect(records.Any(isAt("192.0.2.1"))).To(BeTrue())
		Expect(records.HasFile("a1")).To(BeTrue())
		Expect(s.Drop("a1")).To(Succeed())
		Expect(records.HasFile("a1")).To(BeFalse())
		Expect(os.WriteFile(records.Path+"/"+statefile.Temporary("a1.json"), []byte("half"), 0o600)).To(Succeed())
		Expect(records.HasFile("a1")).To(BeTrue())
	})

	It("are written by one at a time, who waits as long as Wait says", func(ctx SpecContext) {
		Expect(records.Put(ctx, lease{Name: "a1"})).To(Succeed())
		s, err := records.Open(ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(s.Close)
		records.Wait = 20 * time.Millisecond
		Expect(records.Put(ctx, lease{Name: "a1"})).To(MatchError(statefile.ErrBusy))
		Expect(records.Drop(ctx, "b2", "a1")).To(MatchError(statefile.ErrBusy))
		Expect(second(records.All(ctx))).To(MatchError(statefile.ErrBusy))
		Expect(records.Drop(ctx, "b2")).To(Succeed())
	})

	It("that are stale are ended without the lock, and dropped where that works", func(ctx SpecContext) {
		for _, name := range []string{"a1", "b2", "c3"} {
			Expect(records.Put(ctx, lease{Name: name})).To(Succeed())
		}
		stale := func(l lease) bool { return l.Name != "b2" }
		Expect(records.Collect(ctx, stale, func(l lease) error {
			Expect(records.Put(ctx, l)).To(Succeed())
			if l.Name == "a1" {
				return errors.New("busy: a1")
			}
			return nil
		})).To(MatchError("busy: a1"))
		Expect(records.All(ctx)).To(Equal([]*lease{{Name: "a1"}, {Name: "b2"}}))
	})
})
