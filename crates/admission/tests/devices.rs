//! Loads onto accelerators whose memory is known, partly used by others, or unknown.

use std::fs;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use toko_admission::decision::Load;
use toko_admission::estimate::Backend;
use toko_admission::handles::{Admitted, Loading};
use toko_admission::ledger::{Home, ModelId, Pool, ScopeId, Verdict};
use toko_admission::machine::record::Process;
use toko_admission::policy::Policy;
use toko_admission::probe::Roots;
use toko_admission::probe::devices::{Device, Devices};
use toko_admission::sizing::{Evidence, Kind, Sizing, Term};
use toko_admission::steward::Steward;
use toko_admission::surroundings::Settings;
use toko_admission::units::Bytes;

const GIB: u64 = 1024;

/// Accelerators that have what a test says.
#[derive(Default)]
struct Given(Mutex<Vec<Device>>);

impl Devices for Given {
    fn read(&self) -> Vec<Device> {
        self.0.lock().expect("nobody panics meanwhile").clone()
    }
}

/// A system of 32 GiB with one accelerator that can be read and one that cannot.
struct Place {
    _directory: TempDir,
    given: Arc<Given>,
    steward: Steward,
}

impl Place {
    fn new(total_mib: u64, free_mib: u64) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let proc = directory.path().join("proc");
        fs::create_dir_all(proc.join("self")).expect("a directory");
        let meminfo = "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 31457280 kB\n";
        fs::write(proc.join("meminfo"), meminfo).expect("a file");
        let settings = Settings {
            state_root: directory.path().join("state"),
            leases: directory.path().join("leases"),
            roots: Roots { proc, cgroup: directory.path().join("cgroup") },
            limit: None,
            process: Process {
                program: "toko serve".to_owned(),
                pid: std::process::id(),
                started_ms: 7,
                scope: "state".to_owned(),
            },
            now_ms: || 7,
        };
        let given = Arc::new(Given::default());
        let devices: Arc<dyn Devices> = Arc::clone(&given) as _;
        let steward = Steward::open_with_devices(settings, devices);
        let place = Self { _directory: directory, given, steward };
        place.set(total_mib, free_mib);
        place
    }

    fn set(&self, total_mib: u64, free_mib: u64) {
        let (total, free) = (Some(Bytes::from_mib(total_mib)), Some(Bytes::from_mib(free_mib)));
        let known = Device { name: "first".to_owned(), total, free };
        let unknown = Device { name: String::new(), total: None, free: None };
        *self.given.0.lock().expect("nobody panics meanwhile") = vec![known, unknown];
    }

    fn verdict(&self, load: &Load) -> Verdict {
        self.steward.explain(load, &[]).reason
    }

    fn launch(&self, load: &Load) -> Loading {
        match self.steward.admission().reserve(&load.ask()) {
            Ok((Admitted::Cold(reservation), _)) => reservation.launch().1,
            other => panic!("{other:?}"),
        }
    }
}

/// A model whose weights go to an accelerator and that takes 1,000 MiB of the host besides.
fn load(model: &str, mib: u64, device: u8) -> Load {
    let bytes = Bytes::from_mib(1000);
    let sizing = Sizing {
        mapped_weights: Bytes::ZERO,
        private_weights: Bytes::from_mib(mib),
        weights_source: "files".to_owned(),
        fixed: vec![Term { kind: Kind::Runtime, bytes, source: "flat".to_owned() }],
        per_replica: Vec::new(),
        growth: Vec::new(),
        evidence: Evidence::FileSystemMeasured,
    };
    Load {
        scope: ScopeId(0),
        model: ModelId::new(model),
        sizing: Some(sizing),
        context_tokens: 1,
        replicas: 1,
        pool: Pool::Device(device),
        home: Home::Process,
        variants: Vec::new(),
    }
}

#[test]
fn weights_go_to_an_accelerator_only_where_it_has_memory_of_its_own_and_tells_how_much() {
    let memory = Some(Bytes::from_mib(8 * GIB));
    let places = [
        (Backend::Cuda, memory, Pool::Device(3)),
        (Backend::Cuda, None, Pool::Host),
        (Backend::Metal, memory, Pool::Host),
        (Backend::Cpu, memory, Pool::Host),
    ];
    for (backend, memory, place) in places {
        assert_eq!(Pool::of(backend, 3, memory), place, "{backend:?}");
    }
}

#[test]
fn what_others_use_of_an_accelerator_is_not_promised_again() {
    let place = Place::new(24 * GIB, 10 * GIB);
    assert_eq!(place.verdict(&load("model", 10 * GIB, 0)), Verdict::Allowed, "all that is free");
    assert_eq!(place.verdict(&load("model", 10 * GIB + 1, 0)), Verdict::InsufficientLiveMemory);
    assert_eq!(place.verdict(&load("model", 24 * GIB + 1, 0)), Verdict::ExceedsConfiguredCeiling);
    let decision = place.steward.explain(&load("model", 12 * GIB, 0), &[]);
    assert_eq!(
        decision.sentence(),
        "model needs 12.0 GiB on accelerator 0, where 10.0 GiB are free"
    );
    assert!(!decision.never_fits, "others may go");
    let decision = place.steward.explain(&load("model", 30 * GIB, 0), &[]);
    let sentence =
        "model needs 30.0 GiB on accelerator 0, which has 24.0 GiB, of which models take 0 B";
    assert_eq!(decision.sentence(), sentence);
    assert!(decision.never_fits);
}

#[test]
fn what_is_on_its_way_to_an_accelerator_counts_until_it_shows_there() {
    let place = Place::new(24 * GIB, 16 * GIB);
    let (first, second) = (load("first", 10 * GIB, 0), load("second", 8 * GIB, 0));
    let Ok((promised, _)) = place.steward.admission().reserve(&first.ask()) else {
        panic!("there is room")
    };
    assert_eq!(place.verdict(&second), Verdict::InsufficientLiveMemory, "6 GiB are not promised");
    drop(promised);
    let loading = place.launch(&first);
    assert_eq!(place.verdict(&second), Verdict::InsufficientLiveMemory, "it does not show yet");
    let resident = loading.publish(Bytes::ZERO);
    place.set(24 * GIB, 8 * GIB);
    assert_eq!(place.verdict(&second), Verdict::Allowed, "it shows, and somebody else has left");
    let memory = place.steward.memory(&[]);
    let charged: Vec<u64> =
        memory.accelerators.iter().map(|of| of.charged_bytes.floor_mib()).collect();
    assert_eq!(charged, [10 * GIB, 0]);
    assert_eq!(memory.accelerators[0].free_bytes, Some(Bytes::from_mib(8 * GIB)));
    assert_eq!(memory.charged_bytes, Bytes::from_mib(1000), "only the rest is on the host");
    drop(resident);
    assert_eq!(place.steward.memory(&[]).accelerators[0].charged_bytes, Bytes::ZERO);
}

#[test]
fn an_accelerator_that_cannot_be_read_bounds_nothing_and_the_host_still_does() {
    let place = Place::new(24 * GIB, 10 * GIB);
    assert_eq!(place.verdict(&load("model", 100 * GIB, 1)), Verdict::Allowed);
    place.steward.set_policy(&Policy::custom_gb(0.5).unwrap()).unwrap();
    assert_eq!(place.verdict(&load("model", 1, 0)), Verdict::ExceedsConfiguredCeiling);
    assert!(place.steward.explain(&load("model", 1, 0), &[]).sentence().contains("custom:0.5GB"));
}

#[test]
fn a_policy_is_evaluated_for_the_first_accelerator_where_its_memory_is_known() {
    let place = Place::new(24 * GIB, 10 * GIB);
    let of_accelerator = |place: &Place| {
        let evaluation = place.steward.evaluate(&Policy::everyday());
        assert_eq!(evaluation.host_memory.effective_new_load_ceiling_mb, 13_107);
        evaluation.accelerator_memory.map(|of| (of.total_mb, of.budget_mb))
    };
    assert_eq!(of_accelerator(&place), Some((24 * GIB, 24 * GIB)));
    place.given.0.lock().unwrap().clear();
    assert_eq!(of_accelerator(&place), None);
    let memory = serde_json::to_value(place.steward.memory(&[])).unwrap();
    assert!(memory.get("accelerators").is_none(), "who has none is told of none");
}

#[cfg(not(feature = "nvml"))]
#[test]
fn a_build_without_the_feature_knows_no_accelerator() {
    assert_eq!(toko_admission::probe::devices::system().read(), []);
}
