//! Provides an engine, a home, a unique program, and containers for inspecting images.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use bollard::Docker;
use bottle_backend::{BackendError, ProgressSink, Step};
use bottle_containers::docker::images::{AgentImage, Images};
use bottle_host::Host;
use bottle_manifest::resolve::{Selection, resolve};
use bottle_manifest::{Homes, Manifests};
use bottle_plan::{Flags, ImageSource, Plan, Workspace};
use bottle_test_support::{engine, skip};

/// An engine with a temporary home. Dropping this value removes the images and the volume that were built for
/// the home.
pub(crate) struct Fixture {
    pub(crate) docker: Docker,
    pub(crate) host: Host,
    pub(crate) reports: ReportLog,
    directory: tempfile::TempDir,
}

impl Fixture {
    /// Creates a fixture. If no engine is available, reports that the test is skipped and returns `None`.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if let Err(why) = engine::here() {
            skip::aloud(test, &why);
            return None;
        }
        let directory = tempfile::Builder::new().prefix("bottle-images").tempdir().expect("a directory");
        let host = Host {
            env: BTreeMap::new(),
            cwd: "/".into(),
            home: directory.path().join("home"),
            user_home: directory.path().join("user"),
            runtime: directory.path().join("run"),
            program: program(&directory),
        };
        std::fs::create_dir_all(&host.home).expect("home");
        let docker = Docker::connect_with_defaults().expect("an engine");
        Some(Self { docker, host, reports: ReportLog::default(), directory })
    }

    /// Writes a file in the home.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.host.home.join(path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
        std::fs::write(path, text).expect("write");
    }

    /// Builds an agent's image from this Dockerfile. The image is removed with the fixture.
    pub(crate) async fn of_dockerfile(&self, text: &str) -> Result<AgentImage, BackendError> {
        // The label is unique, so that another test's image is not reused.
        self.write("Dockerfile", &format!("{text}\nLABEL test={}\n", self.word()));
        let plan = self.plan_with("template: command, command: [sh], dockerfile: Dockerfile");
        self.agent(&plan).await
    }

    /// Builds or finds the agent's image of a plan, and records the progress reports.
    pub(crate) async fn agent(&self, plan: &Plan) -> Result<AgentImage, BackendError> {
        let _lock = matches!(plan.image, ImageSource::Provider(_)).then(engine::lock_tools);
        self.images().agent(plan, &BTreeMap::new(), &self.reports.sink()).await
    }

    /// Creates the runtime directory of this home and returns its path.
    pub(crate) fn runtime(&self) -> PathBuf {
        let directory = self.directory.path().join("xdg");
        let mut private = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700);
        private.recursive(true).create(&directory).expect("directory");
        directory
    }

    /// Returns a word that is unique to this fixture, in lower case.
    pub(crate) fn word(&self) -> String {
        self.directory.path().file_name().expect("a name").to_string_lossy().to_lowercase()
    }

    /// Lists the scratch containers of this home.
    pub(crate) fn stand_ins(&self) -> String {
        docker(&[
            "ps",
            "--all",
            "--quiet",
            "--filter",
            &format!("label=bottle.scratch={}", self.host.home_hash()),
        ])
    }

    /// Returns an [`Images`] with an empty cache, like the one of a new `bottle start`.
    pub(crate) fn images(&self) -> Images {
        // The client library finds the engine in the same way.
        let named = std::env::var("DOCKER_HOST").unwrap_or_default();
        let socket = named.strip_prefix("unix://").unwrap_or("/var/run/docker.sock");
        Images::new(&self.docker, Path::new(socket), &self.host)
    }

    /// Returns a plan for the template `command` without a user-provided image.
    pub(crate) fn plan(&self) -> Plan {
        self.plan_with("template: command, command: [sh]")
    }

    /// Returns a plan for a bottle manifest whose `agent_provider` has these entries.
    pub(crate) fn plan_with(&self, provider: &str) -> Plan {
        let manifests = Manifests::new(Homes::from(&self.host));
        let write = |directory: &str, text: &str| {
            let directory = self.host.home.join(directory);
            std::fs::create_dir_all(&directory).expect("directory");
            std::fs::write(directory.join("here.md"), text).expect("write");
        };
        write("agents", "");
        write("bottles", &format!("---\nagent_provider: {{{provider}}}\n---\n"));
        let here = || "here".parse().expect("a name");
        let selection = Selection { agent: here(), bottles: vec![here()] };
        let resolved = resolve(&selection, &manifests).expect("resolved");
        let flags = Flags {
            budget: Vec::new(),
            slug: None,
            label: None,
            color: None,
            workspace: Workspace::Empty,
            live: None,
            repository: None,
            directories: Vec::new(),
            git_directories: Vec::new(),
            user_ignore_file: None,
            backend: "docker".to_owned(),
            ends_with: None,
            detached: false,
            task: None,
            terminal: None,
            stdin: false,
            arguments: Vec::new(),
            resumed: false,
            log_keep: 1 << 20,
            limits: Default::default(),
            metering: Default::default(),
            learn: false,
            renewal: Default::default(),
            unsupervised: false,
            waits: Default::default(),
            image: None,
            git_user: Default::default(),
        };
        bottle_plan::build(&self.host, &resolved.manifest, &flags, &mut |bytes| bytes.fill(1))
            .expect("a plan")
    }
}

/// Builds a unique static program. Its sidecars' image and its volume are therefore not shared with other
/// tests.
fn program(directory: &tempfile::TempDir) -> PathBuf {
    let (source, program) = (directory.path().join("program.c"), directory.path().join("bottle"));
    let word: u64 = rand::random();
    let text =
        format!("#include <stdio.h>\nint main(void) {{ puts(\"the program {word:x}\"); return 0; }}\n");
    std::fs::write(&source, text).expect("write");
    let built = Command::new("cc").arg("-static").arg("-o").args([&program, &source]).status().expect("cc");
    assert!(built.success(), "cc -static");
    program
}

/// The progress reports of a build. A line that begins a stage is prefixed with `> `.
#[derive(Clone, Default)]
pub(crate) struct ReportLog(Arc<Mutex<Vec<String>>>);

impl ReportLog {
    /// Returns a sink that records reports in this log.
    pub(crate) fn sink(&self) -> ProgressSink<Step> {
        let reports = self.clone();
        ProgressSink::new(move |Step { line, starts_stage, .. }| {
            reports.0.lock().expect("lock").push(if starts_stage { format!("> {line}") } else { line });
        })
    }

    /// Whether a recorded line that does not begin a stage contains this text.
    pub(crate) fn contains(&self, word: &str) -> bool {
        // The builder also prints each instruction itself as the beginning of a stage.
        self.0.lock().expect("lock").iter().any(|line| line.contains(word) && !line.starts_with("> "))
    }

    /// Returns and clears the recorded lines.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("lock"))
    }
}

/// Runs `docker` and returns its output. Fails the test if `docker` fails.
#[track_caller]
pub(crate) fn docker(arguments: &[&str]) -> String {
    engine::docker(arguments).unwrap_or_else(|| panic!("docker {arguments:?} failed"))
}

/// Returns the output of a shell script in a new container of this image, without a network.
#[track_caller]
pub(crate) fn in_image(image: &str, script: &str) -> String {
    docker(&["run", "--rm", "--network=none", "--entrypoint=/bin/sh", image, "-c", script])
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let Ok(bytes) = std::fs::read(&self.host.program) else { return };
        let hash = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&bytes));
        let label = format!("label=bottle.program={hash}");
        for image in engine::docker(&["images", "--quiet", "--filter", &label]).unwrap_or_default().lines() {
            let _ = engine::docker(&["rmi", "--force", image]);
        }
        for path in ["Dockerfile", "images/dev"] {
            let label = format!("label=bottle.dockerfile={}:{path}", self.host.home_hash());
            for image in
                engine::docker(&["images", "--quiet", "--filter", &label]).unwrap_or_default().lines()
            {
                let _ = engine::docker(&["rmi", "--force", image]);
            }
        }
        let name = format!("name=bottle-program-{}", &hash[..16]);
        for volume in
            engine::docker(&["volume", "ls", "--quiet", "--filter", &name]).unwrap_or_default().lines()
        {
            let _ = engine::docker(&["volume", "rm", volume]);
        }
    }
}
