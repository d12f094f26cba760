//! Repeatedly searches the machine and its container engine for secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The directories in which the runtime and the engine keep files of containers.
const RUNTIME: [&str; 3] = ["/run/docker", "/run/containerd", "/var/lib/docker/containers"];
/// The maximum number of bytes read from a file. A secret would be in a configuration file, which is short.
const FILE_MAX: u64 = 4 << 20;

/// A kind of place in which a secret could appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Containers,
    Images,
    History,
    Networks,
    Volumes,
    Logs,
    Events,
    CommandLines,
    Environments,
    Runtime,
    Layers,
    Home,
}

impl Place {
    /// All kinds of places.
    pub(crate) const ALL: [Self; 12] = [
        Self::Containers,
        Self::Images,
        Self::History,
        Self::Networks,
        Self::Volumes,
        Self::Logs,
        Self::Events,
        Self::CommandLines,
        Self::Environments,
        Self::Runtime,
        Self::Layers,
        Self::Home,
    ];
}

/// The secrets to search for, and where to search.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    /// The home's hash, which identifies the home's objects on the engine.
    pub(crate) home: String,
    /// The user's directories to search.
    pub(crate) directories: Vec<PathBuf>,
    /// The secrets to search for.
    pub(crate) needles: Vec<String>,
    /// Secrets that the environment of an agent's process may contain.
    pub(crate) agents_own: Vec<String>,
}

/// The findings: the exact places, by secret and kind of place.
pub(crate) type Found = BTreeMap<(String, Place), BTreeSet<String>>;

/// Searches some of the places one time. The set contains places that need no second search.
type Round = fn(&Search, &Mutex<Found>, &mut BTreeSet<String>);

/// A search that repeats until it is ended.
pub(crate) struct Searching {
    ends: Arc<AtomicBool>,
    found: Arc<Mutex<Found>>,
    searches: [JoinHandle<()>; 3],
    /// The numbers of complete searches of the engine, of the processes and of the files.
    rounds: Arc<[AtomicUsize; 3]>,
    events: Child,
    hearing: JoinHandle<()>,
}

impl Searching {
    /// Starts the search, including the engine's events.
    pub(crate) fn begin(search: Search) -> Self {
        let (ends, found) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Found>>::default());
        let mut command = Command::new("docker");
        command.args(["events", "--format", "{{json .}}"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut events = command.spawn().expect("docker events");
        let heard = BufReader::new(events.stdout.take().expect("its output"));
        let hearing = {
            let (search, found) = (search.clone(), found.clone());
            std::thread::spawn(move || {
                for line in heard.lines().map_while(Result::ok) {
                    search.look(&found, Place::Events, "docker events", line.as_bytes());
                }
            })
        };
        // Existing objects are searched first, while no secret is in use.
        let mut before = BTreeSet::new();
        search.engine(&found, &mut before);
        let rounds = Arc::<[AtomicUsize; 3]>::default();
        let each: [(usize, Round); 3] = [(0, Search::engine), (1, Search::processes), (2, Search::disk)];
        let searches = each.map(|(number, round)| {
            let (search, ends, found) = (search.clone(), ends.clone(), found.clone());
            let (mut known, rounds) = (before.clone(), rounds.clone());
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    round(&search, &found, &mut known);
                    rounds[number].fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Self { ends, found, searches, rounds, events, hearing }
    }

    /// Waits until every kind of place was searched completely at least once from now on. A round that already runs is
    /// not counted.
    pub(crate) fn wait_for_a_round(&self, end: Instant) {
        let now = || self.rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
        let before = now();
        while now().iter().zip(before).any(|(now, before)| *now < before + 2) {
            assert!(Instant::now() < end, "no round was completed: {before:?} {:?}", now());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the search and returns the findings.
    pub(crate) fn end(mut self) -> Found {
        self.ends.store(true, Ordering::Relaxed);
        for search in self.searches {
            search.join().expect("searched");
        }
        self.events.kill().expect("ended");
        self.events.wait().expect("ended");
        self.hearing.join().expect("heard");
        self.found.lock().expect("lock").clone()
    }
}

impl Search {
    fn look(&self, found: &Mutex<Found>, place: Place, at: &str, bytes: &[u8]) {
        for needle in self.needles.iter().filter(|needle| contains(bytes, needle.as_bytes())) {
            let mut found = found.lock().expect("lock");
            found.entry((needle.clone(), place)).or_default().insert(at.to_owned());
        }
    }

    /// Searches the engine's objects. Each image is searched only one time, because images never change.
    fn engine(&self, found: &Mutex<Found>, known: &mut BTreeSet<String>) {
        let label = format!("label=bottle.home={}", self.home);
        let of_home = |list: &[&str]| ids(&[list, &["--quiet", "--filter", &label]].concat());
        let containers = of_home(&["ps", "--all", "--no-trunc"]);
        self.inspected(found, Place::Containers, &containers);
        for id in &containers {
            self.look(found, Place::Logs, id, &said(&["logs", id]));
        }
        self.inspected(found, Place::Networks, &of_home(&["network", "ls", "--no-trunc"]));
        self.inspected(found, Place::Volumes, &of_home(&["volume", "ls"]));
        let mut images = ids(&["images", "--quiet", "--no-trunc", "--filter", "label=bottle.image"]);
        images.extend(ids(&["images", "--quiet", "--no-trunc", "--filter", &label]));
        images.retain(|image| known.insert(image.clone()));
        self.inspected(found, Place::Images, &images);
        for image in &images {
            self.look(found, Place::History, image, &said(&["history", "--no-trunc", image]));
        }
    }

    /// Searches the files of the runtime, of the containers and of the user.
    fn disk(&self, found: &Mutex<Found>, _: &mut BTreeSet<String>) {
        for directory in RUNTIME {
            self.files(found, Place::Runtime, Path::new(directory));
        }
        for directory in &self.directories {
            self.files(found, Place::Home, directory);
        }
        let label = format!("label=bottle.home={}", self.home);
        for id in ids(&["ps", "--all", "--quiet", "--filter", &label]) {
            let directory = said_text(&["inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", &id]);
            self.files(found, Place::Layers, Path::new(directory.trim()));
        }
    }

    fn inspected(&self, found: &Mutex<Found>, place: Place, ids: &[String]) {
        if !ids.is_empty() {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            self.look(found, place, &ids.join(" "), &said(&[&["inspect"], &ids[..]].concat()));
        }
    }

    /// Searches every readable process except this one and the commands that received the secrets.
    fn processes(&self, found: &Mutex<Found>, _: &mut BTreeSet<String>) {
        for entry in fs::read_dir("/proc").expect("/proc").filter_map(Result::ok) {
            let path = entry.path();
            let [command, environment] =
                ["cmdline", "environ"].map(|file| fs::read(path.join(file)).unwrap_or_default());
            let name = format!("{} {}", path.display(), String::from_utf8_lossy(&command).replace('\0', " "));
            self.look(found, Place::CommandLines, &name, &command);
            let given = contains(&environment, GIVEN.as_bytes());
            let allowed =
                if contains(&environment, b"BOTTLE_PROMPT_FILE=") { &self.agents_own[..] } else { &[] };
            if !given {
                let needles =
                    self.needles.iter().filter(|needle| !allowed.contains(needle)).cloned().collect();
                let search = Self { needles, ..self.clone() };
                search.look(found, Place::Environments, &name, &environment);
            }
        }
    }

    fn files(&self, found: &Mutex<Found>, place: Place, directory: &Path) {
        for entry in fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                self.files(found, place, &entry.path());
            } else if kind.is_file()
                && let Ok(file) = fs::File::open(entry.path())
            {
                let mut bytes = Vec::new();
                // The file may become unreadable in the meantime, for example when its container is removed.
                let _ = file.take(FILE_MAX).read_to_end(&mut bytes);
                self.look(found, place, &entry.path().display().to_string(), &bytes);
            }
        }
    }
}

/// The variable that marks commands which receive the secrets through their environment.
pub(crate) const GIVEN: &str = "BOTTLE_TEST_GIVES_SECRETS=";

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    let Some(first) = needle.first() else { return false };
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        rest = &rest[at..];
        if rest.starts_with(needle) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}

fn said(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("docker").args(arguments).stdin(Stdio::null()).output().expect("docker");
    [output.stdout, output.stderr].concat()
}

fn said_text(arguments: &[&str]) -> String {
    String::from_utf8_lossy(&said(arguments)).into_owned()
}

fn ids(list: &[&str]) -> Vec<String> {
    said_text(list).lines().map(str::to_owned).collect()
}
