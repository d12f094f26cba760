//! Builds the arguments of `container`. Every function is pure.
//!
//! A test checks the arguments that each function builds against the grammar of `container` 1.2.2 in the directory
//! `grammar`. Values of long options are joined with `=`, because a separate value must not begin with a dash. No call
//! uses `--all` with a command that stops or removes containers, because `--all` would also stop the builder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The configuration of a new container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewContainer {
    /// The container's name, which is also its id and its host name.
    pub(super) name: String,
    /// The labels. No value contains `=`.
    pub(super) labels: Vec<(String, String)>,
    /// The image's reference.
    pub(super) image: String,
    /// The platform, such as `linux/arm64`.
    pub(super) platform: String,
    /// Whether the container is on the default network, which has access to the internet. Otherwise the container has
    /// no network.
    pub(super) networked: bool,
    /// The number of processors.
    pub(super) cpus: u32,
    /// The memory in MiB.
    pub(super) memory: u64,
    /// The maximum number of processes.
    pub(super) processes: u64,
    /// The capabilities of the first process.
    pub(super) capabilities: &'static [&'static str],
    /// Directories in memory (tmpfs), with their sizes in MiB.
    pub(super) tmpfs: Vec<(&'static str, u64)>,
    /// The size of shared memory in MiB.
    pub(super) shared_memory: u64,
    /// The mounts of the container.
    pub(super) mounts: Vec<Mount>,
    /// Sockets of the container to which programs of the host connect.
    pub(super) published: Vec<Socket>,
    /// The program of the first process, and its arguments.
    pub(super) command: [String; 3],
}

/// A mount of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mount {
    /// A directory of the host, which the container cannot change.
    Directory(PathBuf, &'static str),
    /// A named volume.
    Volume(String, &'static str),
    /// A socket of the host to which programs of the container connect.
    Socket(Socket),
}

/// A unix socket, with a path on the host and a path in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Socket {
    /// The path on the host.
    pub(super) host: PathBuf,
    /// The path in the container.
    pub(super) inside: String,
}

/// Returns the arguments that print the version.
pub(super) fn version() -> Vec<OsString> {
    words(&["--version"])
}

/// Returns the arguments that print whether the services of `container` run.
pub(super) fn status() -> Vec<OsString> {
    words(&["system", "status", "--format=json"])
}

/// Returns the arguments that list all containers, including stopped ones.
pub(super) fn list() -> Vec<OsString> {
    words(&["list", "--all", "--format=json"])
}

/// Returns the arguments that create a container without starting it.
pub(super) fn create(new: &NewContainer) -> Vec<OsString> {
    let mut arguments = words(&["create"]);
    let mut option = |name: &str, value: OsString| {
        let mut word = OsString::from(format!("--{name}="));
        word.push(value);
        arguments.push(word);
    };
    option("name", (&new.name).into());
    for (key, value) in &new.labels {
        option("label", format!("{key}={value}").into());
    }
    option("platform", (&new.platform).into());
    if !new.networked {
        option("network", "none".into());
    }
    option("cpus", new.cpus.to_string().into());
    option("memory", format!("{}M", new.memory).into());
    option("ulimit", "core=0:0".into());
    option("ulimit", format!("nproc={0}:{0}", new.processes).into());
    option("cap-drop", "ALL".into());
    for capability in new.capabilities {
        option("cap-add", (*capability).into());
    }
    for (directory, size) in &new.tmpfs {
        option("mount", format!("type=tmpfs,destination={directory},size={}", size << 20).into());
    }
    option("shm-size", format!("{}M", new.shared_memory).into());
    for mount in &new.mounts {
        let value = match mount {
            Mount::Directory(host, inside) => joined(host, &format!("{inside}:ro")),
            Mount::Volume(name, inside) => format!("{name}:{inside}").into(),
            Mount::Socket(socket) => joined(&socket.host, &socket.inside),
        };
        option("volume", value);
    }
    for socket in &new.published {
        option("publish-socket", joined(&socket.host, &socket.inside));
    }
    let [program, flag, argument] = &new.command;
    // The first process prepares the container as root, and then becomes another user.
    option("user", "0:0".into());
    option("workdir", "/".into());
    option("entrypoint", program.into());
    if !new.networked {
        arguments.push("--no-dns".into());
    }
    arguments.extend([&new.image, flag, argument].map(OsString::from));
    arguments
}

/// Returns the arguments that start a container. The call ends when the container's first process has been started.
pub(super) fn start(id: &str) -> Vec<OsString> {
    words(&["start", id])
}

/// Returns the arguments that kill the first process of a running container. The call ends when the process has ended.
pub(super) fn kill(id: &str) -> Vec<OsString> {
    words(&["kill", "--signal=KILL", id])
}

/// Returns the arguments that kill and delete a container.
pub(super) fn delete(id: &str) -> Vec<OsString> {
    words(&["delete", "--force", id])
}

/// Returns the arguments that print the last lines of the output of a container's first process.
pub(super) fn logs(id: &str, lines: u32) -> Vec<OsString> {
    words(&["logs", "-n", &lines.to_string(), id])
}

/// Returns the arguments that run a program in a running container.
pub(super) fn exec(id: &str, command: &[&str]) -> Vec<OsString> {
    words(&[&["exec", id], command].concat())
}

/// Returns the arguments that list all images with their configurations.
pub(super) fn images() -> Vec<OsString> {
    words(&["image", "list", "--format=json"])
}

/// Returns the arguments that load an image from an archive of an OCI layout.
pub(super) fn load(archive: &Path) -> Vec<OsString> {
    words_and(&["image", "load", "--input"], archive)
}

/// Returns the arguments that save an image to an archive of an OCI layout.
pub(super) fn save(reference: &str, platform: &str, archive: &Path) -> Vec<OsString> {
    let platform = format!("--platform={platform}");
    let mut arguments = words_and(&["image", "save", &platform, "--output"], archive);
    arguments.push(reference.into());
    arguments
}

/// Returns the arguments that remove an image. A missing image is no error.
pub(super) fn delete_image(reference: &str) -> Vec<OsString> {
    words(&["image", "delete", "--force", reference])
}

/// Returns the arguments that build an image from the directory `context` with its Dockerfile.
pub(super) fn build(tag: &str, arguments: &[(&str, &str)], context: &Path) -> Vec<OsString> {
    let mut words = vec![format!("--tag={tag}"), "--progress=plain".to_owned()];
    words.extend(arguments.iter().map(|(name, value)| format!("--build-arg={name}={value}")));
    let words: Vec<&str> = ["build"].into_iter().chain(words.iter().map(String::as_str)).collect();
    words_and(&words, context)
}

/// Returns the arguments that create a volume.
pub(super) fn create_volume(name: &str, labels: &[(String, String)]) -> Vec<OsString> {
    let labels = labels.iter().map(|(key, value)| format!("--label={key}={value}").into());
    words(&["volume", "create"]).into_iter().chain(labels).chain([name.into()]).collect()
}

/// Returns the arguments that list all volumes.
pub(super) fn volumes() -> Vec<OsString> {
    words(&["volume", "list", "--format=json"])
}

/// Returns the arguments that remove a volume.
pub(super) fn delete_volume(name: &str) -> Vec<OsString> {
    words(&["volume", "delete", name])
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn words_and(first: &[&str], path: &Path) -> Vec<OsString> {
    let mut arguments = words(first);
    arguments.push(path.into());
    arguments
}

/// Joins a path of the host and a path in the container as `HOST:INSIDE`.
fn joined(host: &Path, inside: &str) -> OsString {
    let mut value = host.as_os_str().to_owned();
    value.push(":");
    value.push(inside);
    value
}

#[cfg(test)]
mod tests {
    use super::super::grammar::Grammar;
    use super::*;

    fn container(networked: bool) -> NewContainer {
        let socket = |host: &str, inside: &str| Socket { host: host.into(), inside: inside.to_owned() };
        NewContainer {
            name: format!("bottle-0123abcd-agent-{}", "a".repeat(40)),
            labels: vec![("bottle.home".to_owned(), "0123abcd".to_owned())],
            image: "localhost/bottle-agent:0123".to_owned(),
            platform: "linux/arm64".to_owned(),
            networked,
            cpus: 4,
            memory: 2048,
            processes: 4096,
            capabilities: &["CHOWN", "SETUID"],
            tmpfs: vec![("/run", 64), ("/tmp", 4096)],
            shared_memory: 1024,
            mounts: vec![
                Mount::Directory("/Users/a b/.bottle/apple/program".into(), "/.bottle/bin"),
                Mount::Volume("bottle-0123abcd-state-a".to_owned(), "/var/lib/bottle"),
                Mount::Socket(socket("/tmp/r/a/agent/443", "/.bottle/proxy/443")),
            ],
            published: vec![socket("/tmp/r/a/guest", "/.bottle/guest/socket")],
            command: ["/.bottle/bin/bottle", "__apple-guest", "{\"uid\":1000}"].map(str::to_owned),
        }
    }

    /// Returns every argument vector that this module can build.
    fn all() -> Vec<Vec<OsString>> {
        vec![
            version(),
            status(),
            list(),
            create(&container(true)),
            create(&container(false)),
            start("a-1"),
            kill("a-1"),
            delete("a-1"),
            logs("a-1", 20),
            exec("a-1", &["/.bottle/bin/bottle", "__apple-archive", "--all"]),
            images(),
            load(Path::new("/tmp/a b/image.tar")),
            save("localhost/bottle-agent:1", "linux/arm64", Path::new("/tmp/image.tar")),
            delete_image("localhost/bottle-agent:1"),
            build(
                "localhost/bottle-sidecars:1",
                &[("PROGRAM", "0a=1"), ("BASE", "debian")],
                Path::new("/tmp/c"),
            ),
            create_volume("bottle-0123abcd-state-a", &[("bottle.home".to_owned(), "0123abcd".to_owned())]),
            volumes(),
            delete_volume("bottle-0123abcd-state-a"),
        ]
    }

    #[test]
    fn every_call_fits_the_grammar() {
        let grammar = Grammar::read();
        for arguments in all() {
            grammar.check(&arguments).unwrap_or_else(|why| panic!("{arguments:?}: {why}"));
        }
    }

    #[test]
    fn the_grammar_refuses_wrong_calls() {
        let grammar = Grammar::read();
        let replaced = |from: &str, to: &str| {
            let change = |word: &OsString| {
                if word.to_string_lossy().starts_with(from) { to.into() } else { word.clone() }
            };
            create(&container(false)).iter().map(change).collect::<Vec<_>>()
        };
        let owned = |call: &[&str]| words(call);
        for (wrong, why) in [
            (replaced("--shm-size", "--hostname=a"), "no option --hostname"),
            (replaced("--mount", "--mount=type=tmpfs,size=1"), "a mount in memory"),
            (replaced("--cpus", "--cpus=1.5"), "an integer"),
            (replaced("--cpus", "--cpus"), "needs a value"),
            (replaced("--memory", "--memory=lots"), "a size"),
            (replaced("--memory", "--memory=64M"), "200 MiB"),
            (replaced("--name", "--name=-a"), "a name"),
            (replaced("--label", "--label=a=b=c"), "one `=`"),
            (replaced("--no-dns", "--no-dns=yes"), "takes no value"),
            (replaced("--no-dns", "--dns=1.1.1.1"), ""),
            (replaced("--workdir", "--workdir=run"), "an absolute path"),
            (replaced("--publish-socket", "--publish-socket=/a:/b:/c"), "one colon"),
            (replaced("--ulimit", "--ulimit=nproc"), "a limit"),
            (owned(&["list", "--format=xml"]), "one of"),
            (owned(&["start"]), "container-id is missing"),
            (owned(&["start", "a", "b"]), "too many"),
            (owned(&["restart", "a"]), "no command"),
            (owned(&["delete", "--all", "a"]), "--all"),
            (owned(&["exec", "a"]), "arguments is missing"),
            (owned(&["--debug"]), "no command"),
        ] {
            match grammar.check(&wrong) {
                Err(found) => assert!(!why.is_empty() && found.contains(why), "{wrong:?}: {found}"),
                Ok(()) => assert!(why.is_empty(), "{wrong:?} is accepted"),
            }
        }
    }

    #[test]
    fn no_call_uses_what_later_versions_changed() {
        for arguments in all() {
            let uses = |word: &str| arguments.iter().any(|other| other.to_string_lossy().starts_with(word));
            assert!(!uses("--scheme") && !uses("clean"), "{arguments:?}");
        }
    }

    #[test]
    fn no_call_reaches_containers_of_others_or_copies_a_variable() {
        for arguments in all() {
            let command = arguments[0].to_string_lossy().into_owned();
            let all = arguments.contains(&"--all".into());
            assert!(!all || ["list", "exec"].contains(&command.as_str()), "{arguments:?}");
            assert!(
                !arguments.iter().any(|word| word.to_string_lossy().starts_with("--env")),
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn the_agent_has_no_network_and_only_the_named_capabilities() {
        let words: Vec<String> =
            create(&container(false)).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        insta::assert_snapshot!(words.join("\n"));
    }
}
