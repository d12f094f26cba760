//! Builds the command-line arguments of `smolvm`. Every function is pure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bottle_policy::names::Slug;

/// The label that contains the hash of `$BOTTLE_HOME`.
pub(super) const HOME_LABEL: &str = "bottle.home";

/// The label that contains the bottle's slug.
pub(super) const SLUG_LABEL: &str = "bottle.slug";

/// Builds the arguments of `smolvm machine` for the machines of one state directory.
#[derive(Debug, Clone)]
pub(super) struct Machines {
    /// The directory in which smolvm stores all files of these machines.
    pub(super) state: PathBuf,
}

/// The configuration of a new machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewMachine {
    /// The machine's name.
    pub(super) name: String,
    /// The hash of `$BOTTLE_HOME`.
    pub(super) home: String,
    /// The bottle's slug.
    pub(super) slug: Slug,
    /// The directory of the machine's own root file system.
    pub(super) root: PathBuf,
    /// The number of processors.
    pub(super) cpus: u32,
    /// The memory in MiB.
    pub(super) memory: u64,
    /// Directories of the host that the machine sees.
    pub(super) volumes: Vec<Volume>,
    /// Sockets of the host to which programs in the machine connect.
    pub(super) mounted: Vec<Socket>,
    /// A socket of the machine to which programs on the host connect.
    pub(super) exposed: Socket,
    /// The program that the machine runs, and its arguments.
    pub(super) command: Vec<OsString>,
}

/// A directory of the host that a machine sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    /// The path on the host.
    pub(super) host: PathBuf,
    /// The path in the machine.
    pub(super) inside: &'static str,
    /// Whether the directory is read-only in the machine.
    pub(super) read_only: bool,
}

/// A unix socket that has one path on the host and another path in the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Socket {
    /// The path on the host.
    pub(super) host: PathBuf,
    /// The path in the machine.
    pub(super) inside: String,
}

/// The arguments that print the version.
pub(super) fn version() -> Vec<OsString> {
    vec!["--version".into()]
}

impl Machines {
    /// Lists the machines as JSON.
    pub(super) fn list(&self) -> Vec<OsString> {
        let mut arguments = self.verb("ls");
        arguments.push("--json".into());
        arguments
    }

    /// Creates a machine without a network.
    pub(super) fn create(&self, new: &NewMachine) -> Vec<OsString> {
        let mut arguments = self.verb_on("create", &new.name);
        let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        for (key, value) in [(HOME_LABEL, new.home.as_str()), (SLUG_LABEL, new.slug.as_str())] {
            option("--label", format!("{key}={value}").into());
        }
        option("--image", directory(&new.root));
        option("--cpus", new.cpus.to_string().into());
        option("--mem", new.memory.to_string().into());
        for volume in &new.volumes {
            let mode = if volume.read_only { ":ro" } else { "" };
            option("--volume", joined(&volume.host, &format!("{}{mode}", volume.inside)));
        }
        for socket in &new.mounted {
            option("--mount-socket", joined(&socket.host, &socket.inside));
        }
        let mut exposed = OsString::from(format!("{}:", new.exposed.inside));
        exposed.push(&new.exposed.host);
        option("--expose-socket", exposed);
        arguments.push("--".into());
        arguments.extend(new.command.iter().cloned());
        arguments
    }

    /// Starts a machine.
    pub(super) fn start(&self, name: &str) -> Vec<OsString> {
        self.verb_on("start", name)
    }

    /// Prints the last lines of the output of a machine's program.
    pub(super) fn logs(&self, name: &str, lines: u32) -> Vec<OsString> {
        let mut arguments = self.verb_on("logs", name);
        arguments.extend(["--tail".into(), lines.to_string().into()]);
        arguments
    }

    /// Stops and deletes a machine. Without `--force`, smolvm would stop the machine and then fail to delete it.
    pub(super) fn delete(&self, name: &str) -> Vec<OsString> {
        let mut arguments = self.verb_on("delete", name);
        arguments.push("--force".into());
        arguments
    }

    fn verb_on(&self, verb: &str, name: &str) -> Vec<OsString> {
        let mut arguments = self.verb(verb);
        // Without a name, smolvm would use the machine named `default`.
        arguments.extend(["--name".into(), name.into()]);
        arguments
    }

    fn verb(&self, verb: &str) -> Vec<OsString> {
        let state = self.state.clone().into_os_string();
        vec![
            "machine".into(),
            verb.into(),
            "--error-format".into(),
            "json".into(),
            "--state-dir".into(),
            state,
        ]
    }
}

/// Returns the path of a directory with a slash at the end. The slash distinguishes it from the name of an image in a
/// registry.
fn directory(path: &Path) -> OsString {
    let mut directory = path.as_os_str().to_owned();
    directory.push("/");
    directory
}

fn joined(host: &Path, inside: &str) -> OsString {
    let mut joined = host.as_os_str().to_owned();
    joined.push(":");
    joined.push(inside);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(arguments: &[OsString]) -> String {
        arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn new() -> NewMachine {
        NewMachine {
            name: "bottle-a-1".to_owned(),
            home: "0123abcd".to_owned(),
            slug: "a-1".parse().expect("slug"),
            root: "/home/u/root".into(),
            cpus: 2,
            memory: 1024,
            volumes: vec![
                Volume { host: "/home/u/image".into(), inside: "/image", read_only: true },
                Volume { host: "/home/u/layers".into(), inside: "/layers", read_only: false },
            ],
            mounted: vec![Socket { host: "/run/u/proxy/80".into(), inside: "/run/proxy/80".to_owned() }],
            exposed: Socket { host: "/run/u/guest".into(), inside: "/run/guest".to_owned() },
            command: vec!["/bottle".into(), "--name".into()],
        }
    }

    #[test]
    fn a_new_machine_has_labels_and_no_network() {
        let machines = Machines { state: "/s".into() };
        let arguments = machines.create(&new());
        assert_eq!(
            words(&arguments),
            "machine create --error-format json --state-dir /s --name bottle-a-1 --label bottle.home=0123abcd \
             --label bottle.slug=a-1 --image /home/u/root/ --cpus 2 --mem 1024 \
             --volume /home/u/image:/image:ro --volume /home/u/layers:/layers \
             --mount-socket /run/u/proxy/80:/run/proxy/80 --expose-socket /run/guest:/run/u/guest \
             -- /bottle --name"
        );
        let before_the_command: Vec<_> = arguments.iter().take_while(|word| *word != "--").collect();
        for forbidden in ["--net", "--port", "--gpu", "--ssh-agent", "--stop-on-exit", "--env"] {
            assert!(before_the_command.iter().all(|word| *word != forbidden), "{forbidden}");
        }
    }

    #[test]
    fn every_call_names_its_machine_and_state_directory() {
        let machines = Machines { state: "/s".into() };
        for (arguments, expected) in [
            (machines.list(), "machine ls --error-format json --state-dir /s --json"),
            (machines.start("a"), "machine start --error-format json --state-dir /s --name a"),
            (machines.logs("a", 5), "machine logs --error-format json --state-dir /s --name a --tail 5"),
            (machines.delete("a"), "machine delete --error-format json --state-dir /s --name a --force"),
            (version(), "--version"),
        ] {
            assert_eq!(words(&arguments), expected);
        }
    }
}
