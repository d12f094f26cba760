//! Builds an image with the engine's classic builder.

use std::collections::HashMap;

use bollard::Docker;
use bollard::query_parameters::{BuildImageOptionsBuilder, BuilderVersion};
use bottle_backend::{BackendError, ProgressSink, Step};
use bytes::Bytes;
use futures_util::StreamExt;

use super::build_request::BuildRequest;
use super::context::IGNORE_FILE;
use super::dockerfile::{Dockerfile, Labelled};
use super::labels::{STAGE, mark};
use super::logins;
use super::output::Output;
use super::recipe::Recipe;
use super::upload::Unread;
use crate::docker::engine::EngineError;

/// The file name of the labelled Dockerfile in a build context that is a user's directory.
const LABELLED: &str = ".bottle.Dockerfile";
/// The maximum number of times that a build is started again after [`is_removed_sibling`].
const RESTARTS: usize = 3;

/// Builds an image and returns its id.
///
/// # Errors
/// [`BackendError`] with the cause and the builder's output.
pub(super) async fn build(
    docker: &Docker,
    recipe: Recipe,
    request: &BuildRequest<'_>,
    progress: &ProgressSink<Step>,
) -> Result<String, BackendError> {
    let labelled = Dockerfile::parse(&recipe.dockerfile).label_stages(&mark(&request.home, STAGE));
    let mut restarts = 0;
    loop {
        let mut build =
            Build { request, labelled: &labelled, unread: Unread::default(), output: Output::default() };
        match build.run(docker, recipe.clone(), progress).await {
            Err(cause) if restarts < RESTARTS && is_removed_sibling(&cause) => restarts += 1,
            built => return built.map_err(|cause| build.failure(&cause)),
        }
    }
}

/// Whether a build failed because an image that the build does not use was removed. The cache of the classic builder
/// reads each image that has the same parent as a step, and fails if one of these images is gone (seen with Docker
/// 20.10, in its `image/cache/cache.go`). Another bottle or the user can remove such an image at any time.
fn is_removed_sibling(cause: &EngineError) -> bool {
    cause.to_string().starts_with("unable to find image \"sha256:")
}

/// One run of the builder.
struct Build<'a> {
    request: &'a BuildRequest<'a>,
    labelled: &'a Labelled,
    unread: Unread,
    output: Output,
}

impl Build<'_> {
    async fn run(
        &mut self,
        docker: &Docker,
        recipe: Recipe,
        progress: &ProgressSink<Step>,
    ) -> Result<String, EngineError> {
        let request = self.request;
        let args: HashMap<String, String> =
            request.proxies.iter().cloned().chain(recipe.args.clone()).collect();
        let (name, texts) = texts(&recipe, &self.labelled.text);
        let mut options = BuildImageOptionsBuilder::new()
            .version(BuilderVersion::BuilderV1)
            .dockerfile(name)
            .buildargs(&args)
            .labels(&request.labels.iter().cloned().collect())
            .nocache(request.no_cache)
            // The builder removes intermediate containers even if the build is aborted.
            .rm(true)
            .forcerm(true);
        if let Some(tag) = &request.tag {
            options = options.t(tag);
        }
        let body = bollard::body_try_stream(self.unread.stream(move |out| recipe.pack(out, &texts)));
        let logins = (!request.logins.is_empty()).then(|| logins::for_build(&request.logins));
        let mut events = docker.build_image(options.build(), logins, Some(body));
        let mut id = None;
        while let Some(event) = events.next().await {
            let event = event.map_err(EngineError::from)?;
            id = event.aux.and_then(|aux| aux.id).or(id);
            if let Some(text) = event.stream.or(event.status) {
                let report = |step| progress.report(Step { subject: request.name.to_owned(), ..step });
                self.output.take(&text, &report);
            }
        }
        id.ok_or_else(|| EngineError::Disconnected("the build ended without a result".to_owned()))
    }

    fn failure(&mut self, cause: &EngineError) -> BackendError {
        match self.unread.take() {
            Some(why) => {
                BackendError::failed(format!("cannot read the files for {}: {why}", self.request.name))
            }
            None => self.output.failure(self.request, self.labelled, cause),
        }
    }
}

/// Returns the name of the labelled Dockerfile in the build context, and the files that the classic builder needs in
/// addition to the files of the context. The builder removes the labelled Dockerfile from a user's directory, because
/// `.dockerignore` names it.
fn texts(recipe: &Recipe, labelled: &str) -> (&'static str, Vec<(&'static str, Bytes)>) {
    let dockerfile = Bytes::from(labelled.to_owned());
    let Some(directory) = &recipe.directory else { return ("Dockerfile", vec![("Dockerfile", dockerfile)]) };
    let mut ignore = directory.ignore_file().unwrap_or_else(|| IGNORE_FILE.as_bytes().to_vec());
    ignore.extend_from_slice(format!("\n{LABELLED}\n").as_bytes());
    (LABELLED, vec![(LABELLED, dockerfile), (IGNORE_FILE, Bytes::from(ignore))])
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    /// Reads a request. The body of the request ends with an empty chunk.
    async fn read_request(client: &mut UnixStream) {
        let (mut request, mut part) = (Vec::new(), [0; 4096]);
        while !request.ends_with(b"0\r\n\r\n") {
            let length = client.read(&mut part).await.expect("the request");
            assert!(length > 0, "the request ends early");
            request.extend_from_slice(&part[..length]);
        }
    }

    /// Builds an image on a test double of the engine. The test double ends each build with the next of these events.
    /// Also returns the number of builds.
    async fn built(events: &[&str]) -> (Result<String, BackendError>, usize) {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let docker =
            Docker::connect_with_unix(&socket.display().to_string(), 10, bollard::API_DEFAULT_VERSION)
                .expect("an engine");
        let recipe = Recipe { dockerfile: "FROM base\n".to_owned(), ..Recipe::default() };
        let request = BuildRequest::new("the image", "correct it", "0123abcd".to_owned());
        let discard = ProgressSink::discard();
        let mut builds = 0;
        let engine = async {
            loop {
                let (mut client, _) = listener.accept().await.expect("a connection");
                read_request(&mut client).await;
                let event = events[builds];
                builds += 1;
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{event}\n", event.len() + 1);
                client.write_all(answer.as_bytes()).await.expect("answered");
            }
        };
        let result = tokio::select! {
            result = build(&docker, recipe, &request, &discard) => result,
            () = engine => unreachable!("the engine serves until the build ends"),
        };
        (result, builds)
    }

    const REMOVED: &str = r#"{"error":"unable to find image \"sha256:641c34497fe1\"","errorDetail":{"message":"unable to find image \"sha256:641c34497fe1\""}}"#;
    const BUILT: &str = r#"{"aux":{"ID":"sha256:1"}}"#;

    #[tokio::test]
    async fn a_build_starts_again_if_another_image_was_removed_meanwhile() {
        let (result, builds) = built(&[REMOVED, REMOVED, BUILT]).await;
        assert_eq!((result.expect("built").as_str(), builds), ("sha256:1", 3));
        let (result, builds) = built(&[REMOVED; 4]).await;
        let error = result.expect_err("each build fails").one_line();
        assert_eq!(builds, 4);
        assert!(error.contains("cannot build the image: unable to find image"), "{error}");
    }

    #[tokio::test]
    async fn a_build_that_fails_for_another_reason_is_not_started_again() {
        let failed =
            r#"{"errorDetail":{"message":"returned 1: unable to find image \"sha256:6\""},"error":"x"}"#;
        let (result, builds) = built(&[failed]).await;
        assert_eq!((result.is_err(), builds), (true, 1));
    }
}
