//! The requests to Podman that differ from the requests to Docker. The client library has no such requests, so this
//! module builds them itself.
//!
//! - A commit by the Docker-compatible request ignores the configuration in its body, so the new image would have the
//!   container's labels, user and entry point. Podman's own request takes the configuration as instructions of a
//!   Dockerfile.
//! - A container that has ended has the state `stopped` until Podman has released its mounts. Docker has no such state,
//!   and the client library cannot parse it.
//! - A request for a list fails if any container, even a container of another program, is removed during the request
//!   (containers/podman#11810). The request is then repeated.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerConfig, ContainerInspectResponse, ContainerSummary};
use bollard::query_parameters::CommitContainerOptionsBuilder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use url::form_urlencoded::Serializer;

use super::engine_error::EngineError;

/// The maximum number of bytes that are read from an answer. A list of a thousand containers fits in this size. The
/// request for a longer list fails.
const ANSWER_MAX: u64 = 8 << 20;

/// The maximum number of requests for a list. A request fails only if a container is removed at that moment.
const LIST_TRIES: u32 = 16;

/// The time limit of a commit, which copies every changed file of the container.
pub(super) const COMMITTED_WITHIN: Duration = Duration::from_secs(15 * 60);

/// The engine on which containers are committed.
#[derive(Debug, Clone)]
pub(super) struct Committer {
    docker: Docker,
    /// The socket, if the engine is Podman.
    podman: Option<PathBuf>,
}

/// The container to commit, and the image that the commit creates.
#[derive(Debug)]
pub(super) struct Commit<'a> {
    pub(super) container: &'a str,
    pub(super) repository: &'a str,
    pub(super) tag: &'a str,
    pub(super) comment: &'a str,
    /// The parts of the image's configuration that differ from the container's configuration.
    pub(super) config: ContainerConfig,
}

impl Committer {
    /// Creates the value for an engine. `podman` is the engine's socket, if the engine is Podman.
    pub(super) fn new(docker: &Docker, podman: Option<&Path>) -> Self {
        Self { docker: docker.clone(), podman: podman.map(Path::to_owned) }
    }

    /// Commits a container and returns the id of the image. The engine pauses a running container during the commit.
    ///
    /// # Errors
    /// [`EngineError`]. No image is then created. Only if the engine completes the commit after the time limit, an
    /// image exists.
    pub(super) async fn commit(&self, commit: Commit<'_>) -> Result<String, EngineError> {
        let committed = async {
            match &self.podman {
                Some(socket) => on_podman(socket, &commit).await,
                None => self.on_docker(commit).await,
            }
        };
        tokio::time::timeout(COMMITTED_WITHIN, committed).await.map_err(|_| EngineError::TimedOut)?
    }

    async fn on_docker(&self, commit: Commit<'_>) -> Result<String, EngineError> {
        let Commit { container, repository, tag, comment, config } = commit;
        let options = CommitContainerOptionsBuilder::new()
            .container(container)
            .repo(repository)
            .tag(tag)
            .comment(comment)
            .pause(true)
            .build();
        let patient = self.docker.clone().with_timeout(COMMITTED_WITHIN);
        Ok(patient.commit_container(options, config).await?.id)
    }
}

/// The answer to a commit.
#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Id")]
    id: Option<String>,
}

/// The body of an error.
#[derive(Deserialize)]
struct Failure {
    message: String,
}

async fn on_podman(socket: &Path, commit: &Commit<'_>) -> Result<String, EngineError> {
    let answer: Answer = read(&ask(socket, &request(commit)).await?)?;
    answer.id.map(|id| image_id(&id)).ok_or_else(not_understood)
}

/// Inspects a container. Podman measures the container's writable layer only with `with_size`, because the measurement
/// takes time.
///
/// # Errors
/// [`EngineError`].
pub(super) async fn inspect(
    socket: &Path,
    container: &str,
    with_size: bool,
) -> Result<ContainerInspectResponse, EngineError> {
    let path = format!("/v1.41/containers/{container}/json?size={with_size}");
    let mut answer: Value = read(&ask(socket, &get(&path)).await?)?;
    if let Some(status) = answer.pointer_mut("/State/Status") {
        rename_stopped(status);
    }
    serde_json::from_value(answer).map_err(|_| not_understood())
}

/// Lists the containers, running or not, that these filters select.
///
/// # Errors
/// [`EngineError`].
pub(super) async fn list(
    socket: &Path,
    filters: &HashMap<String, Vec<String>>,
) -> Result<Vec<ContainerSummary>, EngineError> {
    let filters = serde_json::to_string(filters).unwrap_or_default();
    let query =
        Serializer::new(String::new()).append_pair("all", "true").append_pair("filters", &filters).finish();
    let request = get(&format!("/v1.41/containers/json?{query}"));
    let mut tries = 1..LIST_TRIES;
    let mut answer: Vec<Value> = loop {
        match read(&ask(socket, &request).await?) {
            Err(error) if error.is_missing() && tries.next().is_some() => {}
            listed => break listed?,
        }
    };
    answer.iter_mut().filter_map(|container| container.get_mut("State")).for_each(rename_stopped);
    serde_json::from_value(Value::Array(answer)).map_err(|_| not_understood())
}

/// Replaces the state `stopped` with Docker's name for a container that has ended.
fn rename_stopped(state: &mut Value) {
    if state == "stopped" {
        *state = Value::from("exited");
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nHost: podman\r\n\r\n")
}

fn not_understood() -> EngineError {
    EngineError::Disconnected("an answer of Podman is not understood".to_owned())
}

async fn ask(socket: &Path, request: &str) -> Result<String, EngineError> {
    exchange(socket, request).await.map_err(|error| EngineError::Disconnected(error.to_string()))
}

async fn exchange(socket: &Path, request: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // An HTTP/1.0 answer is not chunked, and the engine closes the connection after the answer.
    stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn request(commit: &Commit<'_>) -> String {
    let mut query = Serializer::new(String::new());
    query
        .append_pair("container", commit.container)
        .append_pair("repo", commit.repository)
        .append_pair("tag", commit.tag)
        .append_pair("comment", commit.comment)
        .append_pair("pause", "true")
        .append_pair("format", "docker");
    for change in changes(&commit.config) {
        query.append_pair("changes", &change);
    }
    let query = query.finish();
    format!("POST /v4.3.0/libpod/commit?{query} HTTP/1.0\r\nHost: podman\r\nContent-Length: 0\r\n\r\n")
}

/// Returns the configuration as instructions of a Dockerfile. Podman reads each instruction as one line, whatever
/// characters it contains.
fn changes(config: &ContainerConfig) -> Vec<String> {
    let words = |name: &str, words: &Option<Vec<String>>| {
        words.as_ref().map(|words| format!("{name} {}", serde_json::Value::from(words.clone())))
    };
    let mut changes: Vec<String> = config
        .labels
        .iter()
        .flatten()
        .map(|(name, value)| format!("LABEL {name}={value}"))
        .chain(config.user.as_ref().map(|user| format!("USER {user}")))
        .chain(words("ENTRYPOINT", &config.entrypoint))
        .chain(words("CMD", &config.cmd))
        .collect();
    changes.sort();
    changes
}

/// Reads the body of a successful answer.
fn read<T: DeserializeOwned>(answer: &str) -> Result<T, EngineError> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(not_understood)?;
    let status = head.strip_prefix("HTTP/1.").and_then(|head| head.split(' ').nth(1));
    let status: u16 = status.and_then(|status| status.parse().ok()).ok_or_else(not_understood)?;
    if matches!(status, 200 | 201) {
        return serde_json::from_str(body).map_err(|_| not_understood());
    }
    let message = serde_json::from_str(body).map(|failure: Failure| failure.message).unwrap_or_default();
    Err(EngineError::Refused { status, message })
}

/// Returns the id of an image in the form that Docker returns.
fn image_id(id: &str) -> String {
    if id.starts_with("sha256:") { id.to_owned() } else { format!("sha256:{id}") }
}

/// Returns the name of an image in the form that Docker returns. Podman puts a registry before a name without a
/// registry.
pub(super) fn short_name(name: String) -> String {
    let short = name.strip_prefix("localhost/").or_else(|| name.strip_prefix("docker.io/library/"));
    short.map(str::to_owned).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_each_change_as_an_instruction() {
        let commit = Commit {
            container: "c1",
            repository: "bottle-agent",
            tag: "1",
            comment: "a & b",
            config: ContainerConfig {
                labels: Some([("b", "two words"), ("a", "")].map(|(n, v)| (n.into(), v.into())).into()),
                user: Some("1000:1000".to_owned()),
                entrypoint: Some(Vec::new()),
                cmd: Some(vec!["/bin/sh".to_owned()]),
                ..ContainerConfig::default()
            },
        };
        let request = request(&commit);
        let path = request.lines().next().and_then(|line| line.split(' ').nth(1)).expect("a path");
        let url = url::Url::parse(&format!("http://podman{path}")).expect("an address");
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let changes: Vec<&str> =
            pairs.iter().filter(|(name, _)| name == "changes").map(|(_, value)| value.as_str()).collect();
        assert_eq!(
            changes,
            ["CMD [\"/bin/sh\"]", "ENTRYPOINT []", "LABEL a=", "LABEL b=two words", "USER 1000:1000"]
        );
        assert!(pairs.contains(&("comment".to_owned(), "a & b".to_owned())), "{pairs:?}");
    }

    #[test]
    fn reads_answers_and_errors() {
        let answer = |status: &str, body: &str| {
            read::<Answer>(&format!("HTTP/1.0 {status}\r\nA: b\r\n\r\n{body}")).map(|answer| answer.id)
        };
        assert_eq!(answer("200 OK", "{\"Id\":\"36a6\"}\n"), Ok(Some("36a6".to_owned())));
        let missing = answer("404 Not Found", r#"{"cause":"x","message":"no container","response":404}"#);
        assert!(missing.expect_err("missing").is_missing());
        assert!(answer("200 OK", "").is_err() && read::<Value>("SSH-2.0").is_err());
        assert_eq!((image_id("36a6"), image_id("sha256:36a6")), ("sha256:36a6".into(), "sha256:36a6".into()));
    }

    /// Starts a test double of Podman. Its first `times` list requests fail, because a container was removed.
    fn failing(times: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("podman.sock");
        let listener = tokio::net::UnixListener::bind(&socket).expect("a socket");
        tokio::spawn(async move {
            for number in 0.. {
                let (mut stream, _) = listener.accept().await.expect("a client");
                let answer = match number < times {
                    true => {
                        "500 Internal Server Error\r\n\r\n{\"cause\":\"no such container\",\"message\":\"container \
                         3fd0 does not exist in database: no such container\",\"response\":500}"
                    }
                    false => "200 OK\r\n\r\n[{\"Id\":\"36a6\",\"State\":\"stopped\"}]",
                };
                let _ = stream.write_all(format!("HTTP/1.0 {answer}").as_bytes()).await;
                let _ = stream.shutdown().await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        });
        (directory, socket)
    }

    #[tokio::test]
    async fn lists_again_if_a_container_was_removed_meanwhile() {
        let (_directory, socket) = failing(3);
        let listed = list(&socket, &HashMap::new()).await.expect("a list");
        assert_eq!(
            listed.iter().filter_map(|container| container.id.as_deref()).collect::<Vec<_>>(),
            ["36a6"]
        );
        let (_directory, socket) = failing(u32::MAX);
        assert!(list(&socket, &HashMap::new()).await.expect_err("never a list").is_missing());
    }

    #[test]
    fn an_ended_container_has_dockers_state() {
        let mut state = Value::from("stopped");
        rename_stopped(&mut state);
        assert_eq!(state, "exited");
        let mut state = Value::from("running");
        rename_stopped(&mut state);
        assert_eq!(state, "running");
    }

    #[test]
    fn shortens_only_the_registries_that_podman_adds() {
        for (name, short) in [
            ("localhost/debian:1", "debian:1"),
            ("docker.io/library/bottle-agent:1", "bottle-agent:1"),
            ("docker.io/team/agent:1", "docker.io/team/agent:1"),
            ("bottle-agent:1", "bottle-agent:1"),
        ] {
            assert_eq!(short_name(name.to_owned()), short);
        }
    }
}
