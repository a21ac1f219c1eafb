//! Processes that share a machine's memory, some of them real ones: the test binary started again.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use toko_admission::machine::record::{Held, Holdings, Process, State};
use toko_admission::machine::{Basis, Error, Machine, survey};
use toko_admission::probe::Roots;
use toko_admission::units::Bytes;

/// Far more than any wait here takes: a test fails by what it sees, not by how long it took.
const PATIENCE: Duration = Duration::from_mins(1);
const ROLE: &str = "TOKO_TEST_ROLE";
const DIRECTORY: &str = "TOKO_TEST_DIRECTORY";

fn process(pid: u32) -> Process {
    Process { program: "toko serve".to_owned(), pid, started_ms: 7, scope: "/state".to_owned() }
}

fn holdings(mib: u64) -> Holdings {
    let model = Held {
        model: "smollm2".to_owned(),
        bytes: Bytes::from_mib(mib),
        state: State::Resident,
        since_ms: 5,
        used_ms: 6,
        is_pinned: false,
    };
    let visible = Bytes::from_mib(mib / 4);
    Holdings { held: vec![model], charged: Bytes::from_mib(mib), visible }
}

/// A directory that processes share, in a system in which nothing is known of any process.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory") }
    }

    fn shared(&self) -> PathBuf {
        self.directory.path().join("machine")
    }

    fn roots(&self) -> Roots {
        Roots { proc: self.directory.path().join("proc"), cgroup: self.directory.path().into() }
    }

    fn join(&self, pid: u32) -> Machine {
        Machine::join(&self.shared(), self.roots(), process(pid), PATIENCE).expect("a place")
    }

    /// Puts a process of 300 MiB, 200 of them in files, into the system.
    fn with_resident(&self, pid: u32) {
        let status = "VmSize: 1 kB\nVmHWM: 1 kB\nVmRSS: 307200 kB\nRssAnon: 102400 kB\n\
                      RssFile: 204800 kB\nRssShmem: 0 kB\n";
        let directory = self.roots().proc.join(pid.to_string());
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join("status"), status).expect("a file");
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.shared()).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names.map(|name| name.into_string().expect("a plain name")).collect()
    }

    fn survey(&self) -> toko_admission::machine::Others {
        survey(&self.shared(), &self.roots(), PATIENCE).expect("a survey")
    }
}

fn announce(machine: &Machine, mib: u64) {
    machine.locked(PATIENCE, |_| ((), Some(holdings(mib)))).expect("a turn");
}

#[test]
fn what_one_process_holds_is_seen_by_the_others_and_not_by_itself() {
    let place = Place::new();
    let (one, other) = (place.join(11), place.join(22));
    announce(&one, 400);
    let seen = other.locked(PATIENCE, |others| (others.clone(), None)).unwrap();
    let of_one: Vec<_> = seen.holdings.iter().map(|holding| &holding.holdings).collect();
    assert_eq!(of_one, [&holdings(400)]);
    assert_eq!(seen.holdings[0].process, process(11));
    assert_eq!((seen.charged(), seen.unseen()), (Bytes::from_mib(400), Bytes::from_mib(300)));
    assert_eq!(seen.warnings, Vec::<String>::new());
    let seen = one.locked(PATIENCE, |others| (others.charged(), None)).unwrap();
    assert_eq!(seen, Bytes::ZERO);
    assert_eq!(place.survey().holdings.len(), 2);
}

#[test]
fn what_is_told_replaces_what_was_told_before() {
    let place = Place::new();
    let (one, other) = (place.join(11), place.join(11));
    announce(&one, 400);
    one.locked(PATIENCE, |_| ((), None)).unwrap();
    let seen = || other.locked(PATIENCE, |others| (others.charged(), None)).unwrap();
    assert_eq!(seen(), Bytes::from_mib(400), "nothing new was told");
    one.tell(holdings(100)).unwrap();
    assert_eq!(seen(), Bytes::from_mib(100));
    drop(one);
    assert_eq!(seen(), Bytes::ZERO);
}

#[test]
fn whoever_leaves_takes_its_files_along() {
    let place = Place::new();
    let (one, other) = (place.join(11), place.join(22));
    announce(&one, 400);
    drop((one, other));
    assert_eq!(place.names(), BTreeSet::from(["machine.lock".to_owned()]));
}

#[test]
fn a_survey_joins_nothing_and_makes_nothing() {
    let place = Place::new();
    assert_eq!(place.survey().holdings, []);
    assert!(!place.shared().exists());
    let _one = place.join(11);
    let before = place.names();
    assert_eq!(place.survey().holdings.len(), 1);
    assert_eq!(place.names(), before);
}

#[test]
fn a_record_that_is_torn_at_any_length_is_charged_as_its_process_is() {
    let place = Place::new();
    place.with_resident(11);
    let (one, other) = (place.join(11), place.join(22));
    announce(&one, 400);
    let path = place.shared().join("11-0.record");
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let seen = place.survey();
        let holding = seen.holdings.iter().find(|holding| holding.process.pid == 11).unwrap();
        assert_eq!(holding.basis, Basis::Estimate, "cut to {length}");
        let resident = (Bytes::from_mib(300), Bytes::from_mib(100));
        assert_eq!((holding.holdings.charged, holding.holdings.visible), resident);
        assert_eq!(seen.warnings.len(), 1, "{:?}", seen.warnings);
        assert!(seen.warnings[0].contains("11-0.record"), "{:?}", seen.warnings);
    }
    let charged = || other.locked(PATIENCE, |others| (others.charged(), None)).unwrap();
    assert_eq!(charged(), Bytes::from_mib(300));
    fs::write(&path, &whole).unwrap();
    assert_eq!(charged(), Bytes::from_mib(400));
    fs::write(&path, &whole[1..]).unwrap();
    assert_eq!(charged(), Bytes::from_mib(400), "it said more before");
    fs::remove_file(&path).unwrap();
    assert_eq!(charged(), Bytes::from_mib(400), "a live process always has a record");
}

#[test]
fn nothing_fits_beside_a_live_process_of_which_nothing_is_known() {
    let place = Place::new();
    let _one = place.join(11);
    let path = place.shared().join("11-0.record");
    for garbage in [&b""[..], b"{}\n", &[0xff; 64], &vec![b'x'; 3 << 20]] {
        fs::write(&path, garbage).unwrap();
        let seen = place.survey();
        assert_eq!((seen.holdings[0].basis, seen.charged()), (Basis::Unknown, Bytes::MAX));
        assert!(seen.warnings[0].contains("process 11"), "{:?}", seen.warnings);
    }
}

#[test]
fn what_the_dead_left_is_removed_and_nothing_else() {
    let place = Place::new();
    let one = place.join(11);
    let before = place.names();
    for name in
        ["7-0.tmp", "7-0.record", "7-1.lock", "7-1.record", "7-1.tmp", "notes.txt", "a-b.lock"]
    {
        fs::write(place.shared().join(name), "left").unwrap();
    }
    let seen = one.locked(PATIENCE, |others| (others.clone(), None)).unwrap();
    assert_eq!((seen.holdings.len(), seen.warnings.len()), (0, 0));
    let strange = ["notes.txt", "a-b.lock"].map(str::to_owned);
    assert_eq!(place.names(), &before | &BTreeSet::from(strange));
}

#[test]
fn a_lease_that_was_removed_is_made_again_with_what_it_held() {
    let place = Place::new();
    let one = place.join(11);
    announce(&one, 400);
    fs::remove_file(place.shared().join("11-0.lock")).unwrap();
    one.locked(PATIENCE, |_| ((), None)).unwrap();
    assert_eq!(place.survey().charged(), Bytes::from_mib(400));
    fs::remove_dir_all(place.shared()).unwrap();
    one.locked(PATIENCE, |_| ((), None)).unwrap();
    assert_eq!(place.survey().charged(), Bytes::from_mib(400));
}

#[test]
fn a_turn_is_waited_for_only_as_long_as_is_allowed() {
    let place = Place::new();
    let (one, other) = (place.join(11), place.join(22));
    let short = Duration::from_millis(20);
    let refused = one.locked(PATIENCE, |_| {
        let outcome = other.locked(short, |_| ((), Some(holdings(400))));
        (outcome, None)
    });
    assert!(matches!(refused.unwrap(), Err(Error::Busy { limit, .. }) if limit == short));
    assert_eq!(place.survey().charged(), Bytes::ZERO, "whoever had no turn told nothing");
    announce(&other, 400);
}

#[test]
fn what_could_not_be_told_leaves_what_was_told_before() {
    let place = Place::new();
    let one = place.join(11);
    announce(&one, 400);
    let mut huge = holdings(9);
    huge.held[0].model = "m".repeat(2 << 20);
    let outcome = one.locked(PATIENCE, |_| ((), Some(huge)));
    assert!(matches!(outcome, Err(Error::TooLarge { .. })), "{outcome:?}");
    assert_eq!(place.survey().charged(), Bytes::from_mib(400));
}

#[test]
fn a_directory_that_is_none_is_refused() {
    let place = Place::new();
    let one = place.join(11);
    fs::remove_dir_all(place.shared()).unwrap();
    fs::write(place.shared(), "a file").unwrap();
    let join = || Machine::join(&place.shared(), place.roots(), process(22), PATIENCE);
    assert!(matches!(join(), Err(Error::NotADirectory(_))));
    let turn = one.locked(PATIENCE, |_| ((), Some(holdings(1))));
    assert!(matches!(turn, Err(Error::NotADirectory(_))), "{turn:?}");
    assert!(one.tell(holdings(1)).is_err());
    let seen = survey(&place.shared(), &place.roots(), PATIENCE);
    assert!(matches!(seen, Err(Error::NotADirectory(_))), "{seen:?}");

    fs::remove_file(place.shared()).unwrap();
    fs::create_dir(place.directory.path().join("elsewhere")).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("elsewhere", place.shared()).unwrap();
        assert!(matches!(join(), Err(Error::NotADirectory(_))), "a link could lead anywhere");
    }
}

#[test]
#[cfg(unix)]
fn a_directory_is_closed_to_others_and_one_of_somebody_else_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let place = Place::new();
    fs::create_dir(place.shared()).unwrap();
    fs::set_permissions(place.shared(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(place.join(11));
    let mode = fs::metadata(place.shared()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    // Only the superuser can give something away, and everybody else finds the highest directory not to be theirs.
    let given = std::os::unix::fs::chown(place.shared(), Some(12_345), None).is_ok();
    let foreign = if given { place.shared() } else { PathBuf::from("/") };
    let joined = Machine::join(&foreign, place.roots(), process(22), PATIENCE);
    assert!(matches!(joined, Err(Error::NotOurs { .. })), "{joined:?}");
}

/// A process of its own that does what it is told, a line at a time.
struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts this test binary again, in the middle of the calling test.
    fn start(test: &str, role: &str, directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, orders, answers }
    }

    fn order(&mut self) {
        self.orders.as_mut().expect("an open pipe").write_all(b"go\n").expect("a listener");
    }

    /// Returns the next answer; the test runner writes lines of its own.
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).expect("a pipe");
            assert!(read > 0, "the process ended without an answer");
            if let Some((_, answer)) = line.split_once("answer: ") {
                return answer.trim().to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("a process");
        self.child.wait().expect("a process");
    }

    /// Lets it end by itself and says whether it was content.
    fn end(&mut self) -> bool {
        self.orders = None;
        self.child.wait().expect("a process").success()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn role() -> Option<String> {
    std::env::var_os(ROLE).map(|role| role.into_string().expect("a word"))
}

fn join_as_child() -> Machine {
    let directory = std::env::var_os(DIRECTORY).expect("a directory");
    let process = process(std::process::id());
    Machine::join(Path::new(&directory), Roots::system(), process, PATIENCE).expect("a place")
}

fn answer(text: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "answer: {text}").and_then(|()| out.flush()).expect("a listener");
}

fn orders() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map(|line| line.expect("a pipe"))
}

/// Takes `mib` if the sum stays within `cap_mib`.
fn take(machine: &Machine, mib: u64, cap_mib: u64) -> bool {
    let turn = machine.locked(PATIENCE, |others| {
        assert!(others.charged() <= Bytes::from_mib(cap_mib), "more was admitted than allowed");
        assert_eq!(others.warnings, Vec::<String>::new());
        let fits = others.charged() + Bytes::from_mib(mib) <= Bytes::from_mib(cap_mib);
        (fits, fits.then(|| holdings(mib)))
    });
    turn.expect("a turn")
}

/// Tries to take 100 MiB of 300 at every order.
fn obey() {
    let machine = join_as_child();
    answer("ready");
    for _ in orders() {
        answer(if take(&machine, 100, 300) { "admitted" } else { "refused" });
    }
}

#[test]
fn of_many_processes_only_as_many_are_admitted_as_fit_and_a_killed_one_makes_room_at_once() {
    if role().is_some() {
        return obey();
    }
    let test =
        "of_many_processes_only_as_many_are_admitted_as_fit_and_a_killed_one_makes_room_at_once";
    let place = Place::new();
    let mut workers: Vec<_> =
        (0..8).map(|_| Worker::start(test, "obey", &place.shared())).collect();
    for worker in &mut workers {
        assert_eq!(worker.answer(), "ready");
    }
    workers.iter_mut().for_each(Worker::order);
    let (mut admitted, mut refused): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
    for mut worker in workers {
        let is_in = worker.answer() == "admitted";
        if is_in { admitted.push(worker) } else { refused.push(worker) }
    }
    assert_eq!((admitted.len(), refused.len()), (3, 5));

    let holders: BTreeSet<u32> = place
        .survey()
        .holdings
        .iter()
        .filter(|held| held.holdings == holdings(100))
        .map(|held| held.process.pid)
        .collect();
    assert_eq!(holders, admitted.iter().map(|worker| worker.child.id()).collect());

    while let Some(mut next) = refused.pop() {
        next.order();
        assert_eq!(next.answer(), "refused", "nobody has left yet");
        admitted.remove(0).kill();
        next.order();
        assert_eq!(next.answer(), "admitted", "a killed process holds nothing");
        admitted.push(next);
    }
    assert!(admitted.iter_mut().all(Worker::end));
    assert_eq!(place.survey().holdings, []);
}

/// Takes and gives back as fast as it can.
fn churn() {
    let machine = join_as_child();
    answer("ready");
    let mut admitted = 0;
    for _ in orders().take(1) {
        for round in 0..150 {
            if take(&machine, 50 + round % 100, 300) {
                admitted += 1;
                machine.tell(Holdings::default()).expect("a record");
            }
        }
    }
    answer(&admitted.to_string());
}

#[test]
fn processes_that_come_and_go_never_hold_more_together_than_fits() {
    if role().is_some() {
        return churn();
    }
    let test = "processes_that_come_and_go_never_hold_more_together_than_fits";
    let place = Place::new();
    let mut workers: Vec<_> =
        (0..6).map(|_| Worker::start(test, "churn", &place.shared())).collect();
    for worker in &mut workers {
        assert_eq!(worker.answer(), "ready");
    }
    workers.iter_mut().for_each(Worker::order);
    for worker in &mut workers[..2] {
        // In the middle of whatever it does.
        worker.kill();
    }
    for worker in &mut workers[2..] {
        assert!(worker.answer().parse::<u32>().unwrap() > 0);
        assert!(worker.end(), "it saw more than was allowed");
    }
    assert_eq!(place.survey().holdings, []);
    assert_eq!(place.names(), BTreeSet::from(["machine.lock".to_owned()]));
}

/// Takes its part, and starts a process that outlives it.
#[cfg(unix)]
fn leave_a_child() {
    let machine = join_as_child();
    assert!(take(&machine, 100, 300));
    let mut child = Command::new("sh")
        .args(["-c", "echo up; cat"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a program");
    // Files are closed a moment after the new program has taken the process over.
    let mut up = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut up).expect("a child");
    answer(&child.id().to_string());
    // The child has the other end of the orders; this one waits to be killed.
    child.wait().expect("a child");
}

#[test]
#[cfg(unix)]
fn a_child_does_not_keep_its_dead_parents_lease() {
    use rustix::process::{Pid, test_kill_process};

    if role().is_some() {
        return leave_a_child();
    }
    let test = "a_child_does_not_keep_its_dead_parents_lease";
    let place = Place::new();
    let mut worker = Worker::start(test, "leave", &place.shared());
    let child = worker.answer().parse().unwrap();
    assert_eq!(place.survey().charged(), Bytes::from_mib(100));
    worker.kill();
    assert_eq!(test_kill_process(Pid::from_raw(child).unwrap()), Ok(()), "the child lives");
    assert_eq!(place.survey().holdings, []);
}
