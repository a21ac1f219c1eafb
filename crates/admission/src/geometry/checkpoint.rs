//! Which `config.json` describes a checkpoint, and a cache of what was read from it.
//!
//! Invariant: a geometry is returned only for the file that is there now (same path, time and length), and no file is
//! touched under the cache's lock.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::reference::ReferenceGeometry;
use crate::units::Bytes;

/// The largest `config.json` that is read.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Folders below a snapshot that are searched for weights.
const MAX_DEPTH: usize = 8;

/// Where checkpoints lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The folder with one folder for each managed model.
    pub models_dir: PathBuf,
    /// A Hugging Face cache, where it counts.
    pub hub_dir: Option<PathBuf>,
}

impl Places {
    /// Returns the path of a model's `config.json`, whether it exists or not.
    ///
    /// `hub_repo` is given for models whose engine may load them from the cache; the managed folder comes first.
    pub fn config_path(&self, name: &str, hub_repo: Option<&str>) -> PathBuf {
        let managed = self.models_dir.join(name).join("config.json");
        if managed.exists() {
            return managed;
        }
        let hub = self.hub_dir.as_deref().zip(hub_repo);
        let snapshot = hub.and_then(|(hub, repo)| snapshot(&hub.join(repo_folder(repo))));
        let config = snapshot.map(|folder| folder.join("config.json"));
        config.filter(|path| path.exists()).unwrap_or(managed)
    }
}

fn repo_folder(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// Finds the snapshot that a repository's main branch names, else the newest one that is complete enough to load.
pub fn snapshot(repo_dir: &Path) -> Option<PathBuf> {
    let snapshots = repo_dir.join("snapshots");
    let named = read_config(&repo_dir.join("refs").join("main")).ok();
    let named = named.and_then(|name| plain_name(name.trim()).map(|name| snapshots.join(name)));
    if let Some(folder) = named.filter(|folder| looks_ready(folder)) {
        return Some(folder);
    }
    let folders = fs::read_dir(&snapshots).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let ready = folders.filter(|folder| looks_ready(folder));
    let dated = ready.map(|folder| {
        let modified = fs::metadata(&folder).and_then(|found| found.modified());
        (modified.unwrap_or(SystemTime::UNIX_EPOCH), folder)
    });
    dated.max().map(|(_, folder)| folder)
}

/// Lets a name through that stays in its folder.
fn plain_name(name: &str) -> Option<&OsStr> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(name)), None) => Some(name),
        _ => None,
    }
}

fn looks_ready(folder: &Path) -> bool {
    ["config.json", "model_index.json"].into_iter().any(|name| folder.join(name).exists())
        || sizes(folder, "safetensors", MAX_DEPTH).iter().any(|size| *size > 0)
}

/// What tells one state of a file from another without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    path: PathBuf,
    modified: Option<SystemTime>,
    length: u64,
}

impl Stamp {
    /// Takes the stamp of a regular file; `None` where there is none.
    pub fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self { path: path.to_owned(), modified: found.modified().ok(), length: found.len() })
    }
}

/// Reads a small text such as a `config.json`, which must be a regular file of at most 16 MiB.
pub fn read_config(path: &Path) -> io::Result<String> {
    // Opening a pipe would wait for a writer, so its kind is asked first.
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if found.len() > MAX_CONFIG_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has more than 16 MiB"));
    }
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_CONFIG_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Sums the sizes of a checkpoint's `.safetensors` files, else of its `.bin` files; `None` where it has neither.
///
/// Files count as they lie on disk, so that quantized weights count at their real width.
pub fn weights(folder: &Path) -> Option<Bytes> {
    ["safetensors", "bin"].into_iter().find_map(|extension| {
        let sizes = sizes(folder, extension, MAX_DEPTH);
        let sum: Bytes = sizes.into_iter().map(Bytes::new).sum();
        (sum > Bytes::ZERO).then_some(sum)
    })
}

/// Returns the sizes of the files with an extension; links to files are followed, links to folders are not.
fn sizes(folder: &Path, extension: &str, depth: usize) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let of = |entry: fs::DirEntry| {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return if depth > 0 { sizes(&path, extension, depth - 1) } else { Vec::new() };
        }
        let is_one = path.extension().is_some_and(|found| found == extension);
        let found = fs::metadata(&path).ok().filter(|found| is_one && found.is_file());
        found.map(|found| found.len()).into_iter().collect()
    };
    entries.filter_map(Result::ok).flat_map(of).collect()
}

/// Reads the geometry of a `config.json`; `None` where it has none or can't be read.
fn read_geometry(path: &Path) -> Option<ReferenceGeometry> {
    ReferenceGeometry::from_config(&read_config(path).ok()?)
}

/// What was read of each model's `config.json`.
#[derive(Debug)]
pub struct GeometryCache {
    places: Mutex<Places>,
    known: Mutex<HashMap<String, (Stamp, ReferenceGeometry)>>,
}

impl GeometryCache {
    /// Makes an empty cache over the places.
    pub fn new(places: Places) -> Self {
        Self { places: Mutex::new(places), known: Mutex::default() }
    }

    /// Returns the folder of managed models.
    pub fn models_dir(&self) -> PathBuf {
        locked(&self.places).models_dir.clone()
    }

    /// Moves to another folder of managed models and forgets what was read; nothing happens where it is the same.
    pub fn set_models_dir(&self, models_dir: &Path) {
        let mut places = locked(&self.places);
        if places.models_dir != models_dir {
            models_dir.clone_into(&mut places.models_dir);
            locked(&self.known).clear();
        }
    }

    /// Returns a model's geometry as its file says it now; reads the file only where its stamp changed.
    ///
    /// Call it before taking the ledger's lock.
    pub fn geometry(
        &self,
        model: &str,
        name: &str,
        hub_repo: Option<&str>,
    ) -> Option<ReferenceGeometry> {
        let places = locked(&self.places).clone();
        let path = places.config_path(name, hub_repo);
        let Some(stamp) = Stamp::of(&path) else {
            locked(&self.known).remove(model);
            return None;
        };
        if let Some((_, known)) = locked(&self.known).get(model).filter(|(old, _)| *old == stamp) {
            return Some(*known);
        }
        let geometry = read_geometry(&path);
        let mut known = locked(&self.known);
        match geometry {
            Some(geometry) => drop(known.insert(model.to_owned(), (stamp, geometry))),
            None => drop(known.remove(model)),
        }
        geometry
    }
}

/// Locks, also after a panic elsewhere: every entry is written whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
