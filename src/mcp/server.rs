//! The MCP server of one client. The server uses the official SDK.

use std::sync::Arc;
use std::time::Duration;

use bottle_host::{Host, PARENT};
use bottle_lib::failure::Failure;
use bottle_lib::permit::{Ask, permit, permit_file_change, permit_input, permit_script};
use bottle_lib::redaction::Redaction;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    JsonObject, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate, ServerCapabilities, ServerConfig, Tool as Described, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::arguments::{Arguments, schema};
use super::call::{Call, Checked};
use super::requests::{self, Request};
use super::resources;
use super::result::CallResult;
use super::scope::{Scope, no_task};
use super::tool_names::with_tools;
use super::tools::{self, Effect, Target, Tool};

/// The maximum number of calls of all clients at the same time. Further calls wait.
const CALLS: usize = 32;

/// The interval between progress notifications.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

const INSTRUCTIONS: &str = "Bottles are isolated machines for coding agents. Start one with bottle_start, run commands in \
                            it with terminal, and work on its files with the file tools. Its network reaches only the \
                            hosts that the user allows. Get the work out with bottle_diff or bottle_pull, and stop the \
                            bottle with bottle_stop.";

/// The server of one client.
#[derive(Clone)]
pub(super) struct Server {
    host: Arc<Host>,
    scope: Arc<Scope>,
    /// The tools that exist for the client. The client's scope may exclude some of these tools.
    tools: Arc<[&'static Tool]>,
    calls: Arc<Semaphore>,
    /// The values that are replaced in every result.
    redaction: Arc<Redaction>,
}

/// A mistake in a call, as a sentence for the model, which must correct the call. The result of the call has
/// `isError: true` and contains this sentence. With a JSON-RPC error, many clients would not show the sentence to the
/// model (Model Context Protocol 2025-11-25, "Tools", "Error Handling").
pub(super) struct Mistake(pub(super) String);

impl From<String> for Mistake {
    fn from(sentence: String) -> Self {
        Self(sentence)
    }
}

impl From<Failure> for Mistake {
    fn from(error: Failure) -> Self {
        let hint = error.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        Self(format!("{}{hint}", error.message))
    }
}

impl Server {
    pub(super) fn new(host: Host, scope: Scope, redaction: Arc<Redaction>) -> Self {
        Self::with_tools(host, scope, tools::ALL.iter().collect(), redaction)
    }

    /// Creates the server of a client for which only these tools exist.
    pub(super) fn with_tools(
        host: Host,
        scope: Scope,
        tools: Vec<&'static Tool>,
        redaction: Arc<Redaction>,
    ) -> Self {
        Self {
            host: Arc::new(host),
            scope: Arc::new(scope),
            tools: tools.into(),
            calls: Arc::new(Semaphore::new(CALLS)),
            redaction,
        }
    }

    pub(super) fn tools(&self) -> &[&'static Tool] {
        &self.tools
    }

    fn tool(&self, name: &str) -> Result<&'static Tool, Mistake> {
        self.tools.iter().copied().find(|tool| tool.name == name).ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            Mistake(format!("there is no tool {shown:?}"))
        })
    }

    /// Runs the tool with this name, and returns its result: a JSON object or text.
    ///
    /// # Errors
    /// Returns a sentence for the model.
    pub(super) async fn carry_out(
        &self,
        tool: &str,
        arguments: Option<JsonObject>,
        cancelled: &CancellationToken,
    ) -> Result<CallResult, Mistake> {
        let tool = self.tool(tool)?;
        if !self.scope.has_tool(tool.name) {
            return Err(Mistake(format!("you may not use {}", tool.name)));
        }
        let given = Arguments::check(tool.fields, arguments)?;
        let (bottle, is_new) = self.target(tool, &given)?;
        let mut call = (tool.call)(&given, &bottle);
        if let Request::RunInEnvironment(run) = &mut call.request {
            // If the bottle does not exist yet, another client may make it in the meantime. The command then fails,
            // because the bottle must be the client's own.
            run.is_own = is_new;
        }
        let call = tokio::select! {
            call = self.permit(tool.name, call, &bottle) => call?,
            () = cancelled.cancelled() => return Err(Mistake("the call was cancelled".to_owned())),
        };
        Ok(match self.print(&call, &bottle, cancelled).await? {
            CallResult::Document(Value::Array(items)) => CallResult::Document(json!({"items": items})),
            CallResult::Document(document @ Value::Object(_)) => CallResult::Document(document),
            CallResult::Document(value) => CallResult::Document(json!({"value": value})),
            CallResult::Text(text) => CallResult::Text(text),
        })
    }

    /// Runs a tool and returns the content of its result.
    async fn run(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Mistake> {
        Ok(match self.carry_out(&request.name, request.arguments, &context.ct).await? {
            CallResult::Document(document) => CallToolResult::structured(document),
            CallResult::Text(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
        })
    }

    /// Returns the name of the bottle that a call works on, and whether the call makes that bottle. The name is empty
    /// for a tool without a bottle.
    fn target(&self, tool: &Tool, given: &Arguments) -> Result<(String, bool), Mistake> {
        match tool.target() {
            Target::None => Ok((String::new(), false)),
            Target::Bottle => {
                Ok((self.scope.bottle(&self.host, given.required("bottle"))?.to_string(), false))
            }
            Target::Task => {
                let task = given.required("task");
                let (slug, exists) = self.scope.environment(&self.host, task)?;
                if !exists && tool.name != tools::RUN {
                    return Err(Mistake(no_task(task)));
                }
                Ok((slug.to_string(), !exists))
            }
        }
    }

    /// Applies the command policy to a call.
    async fn permit(&self, tool: &str, mut call: Call, bottle: &str) -> Result<Call, Mistake> {
        let slug = || bottle.parse().map_err(|_| Mistake(format!("{bottle:?} is not a bottle")));
        match std::mem::take(&mut call.checked) {
            Checked::Nothing => {}
            Checked::Change(paths) => {
                let ask = Ask::WaitsForACall;
                permit_file_change(&self.host, &slug()?, tool, &paths, self.scope.mode, ask).await?;
            }
            Checked::Command => {
                let slug = slug()?;
                let permitted = permit(&self.host, &slug, call.argv(), self.scope.mode, Ask::WaitsForACall);
                let variables = permitted.await?;
                call.set_defaults(variables);
                if let Some(script) = call.script_mut() {
                    let ask = Ask::WaitsForACall;
                    *script = permit_script(&self.host, &slug, script, self.scope.mode, ask).await?;
                }
            }
            Checked::Input => permit_input(call.input.as_deref().unwrap_or_default())?,
        }
        Ok(call)
    }

    /// Returns the host, with the client as the parent of bottles that are started.
    fn parent(&self) -> Host {
        let mut host = Host::clone(&self.host);
        host.env.insert(PARENT.into(), self.scope.name.clone().into());
        host
    }

    /// Carries out a call that works on this bottle.
    async fn print(
        &self,
        call: &Call,
        bottle: &str,
        cancelled: &CancellationToken,
    ) -> Result<CallResult, Mistake> {
        let Ok(_permit) = self.calls.acquire().await else {
            return Err(Mistake("the server is stopping".to_owned()));
        };
        let cancelled = cancelled.cancelled();
        let (request, given) = (call.request.clone(), (call.input.as_deref(), call.limit()));
        let parent = self.parent();
        let client = requests::Client { host: &parent, scope: &self.scope, redaction: &self.redaction };
        let result = requests::carry_out(client, bottle, request, given, cancelled).await?;
        Ok(result)
    }

    /// Returns the bottles of the client, in the form of `bottle list --json`.
    async fn bottles(&self, context: &RequestContext<RoleServer>) -> Result<Vec<Value>, ErrorData> {
        let listed = self.print(&Call::request(Request::Bottles), "", &context.ct).await;
        match listed.map_err(|Mistake(why)| ErrorData::internal_error(why, None))? {
            CallResult::Document(Value::Array(items)) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    async fn read(
        &self,
        uri: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<ResourceContents, Mistake> {
        let Some((bottle, part)) = resources::parse(uri) else {
            return Err(Mistake(format!(
                "there is no resource {:?}",
                uri.chars().take(200).collect::<String>()
            )));
        };
        if !self.scope.has_tool(part.tool()) {
            return Err(Mistake(format!("you may not use {}", part.tool())));
        }
        let slug = self.scope.bottle(&self.host, &bottle)?;
        let printed = self.print(&part.call(), slug.as_str(), &context.ct).await?;
        Ok(match printed {
            CallResult::Text(text) => ResourceContents::text(text, uri),
            CallResult::Document(document) => match document["base64"].as_str() {
                Some(bytes) => ResourceContents::blob(bytes, uri),
                None => ResourceContents::text(document["text"].as_str().unwrap_or_default(), uri),
            },
        })
    }
}

/// If the client requested progress notifications, sends them without end.
async fn notify(context: &RequestContext<RoleServer>) -> std::convert::Infallible {
    if let Some(token) = context.meta.get_progress_token() {
        for count in 1_u32.. {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            let seconds = u64::from(count) * PROGRESS_INTERVAL.as_secs();
            let progress = ProgressNotificationParam::new(token.clone(), f64::from(count))
                .with_message(format!("running for {seconds} seconds"));
            if context.peer.notify_progress(progress).await.is_err() {
                // The client has disconnected, so the SDK cancels this call.
                break;
            }
        }
    }
    std::future::pending().await
}

pub(super) fn described(tool: &Tool) -> Described {
    let annotations = match tool.effect {
        Effect::Reads => ToolAnnotations::new().read_only(true),
        Effect::Adds => ToolAnnotations::new().read_only(false).destructive(false),
        Effect::Changes => ToolAnnotations::new().read_only(false).destructive(true),
    };
    Described::new(tool.name, tool.about, schema(tool.fields)).with_annotations(annotations.open_world(false))
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_resources().build())
            .with_server_info(Implementation::new("bottle", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let usable = self.tools.iter().filter(|tool| self.scope.has_tool(tool.name));
        Ok(ListToolsResult::with_all_items(usable.map(|tool| described(tool)).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Err(Mistake(why)) = self.tool(&request.name) {
            return Err(ErrorData::invalid_params(why, None));
        }
        let result = tokio::select! {
            result = self.run(request, &context) => result,
            never = notify(&context) => match never {},
        };
        let result = match result {
            Ok(result) => result,
            Err(Mistake(sentence)) => CallToolResult::error(vec![ContentBlock::text(with_tools(&sentence))]),
        };
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let bottles = self.bottles(&context).await?;
        let logs = bottles.iter().filter_map(|bottle| bottle["slug"].as_str()).map(|slug| {
            Resource::new(resources::log_uri(slug), format!("log of {slug}")).with_mime_type(resources::TEXT)
        });
        Ok(ListResourcesResult::with_all_items(logs.collect()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let log = ResourceTemplate::new(resources::LOG_TEMPLATE, "log of a bottle")
            .with_description("The last lines that a bottle's agent wrote.")
            .with_mime_type(resources::TEXT);
        let file = ResourceTemplate::new(resources::FILE_TEMPLATE, "file of a workspace")
            .with_description("A file of a bottle's workspace, at most the first MiB.");
        Ok(ListResourceTemplatesResult::with_all_items(vec![log, file]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        match self.read(&request.uri, &context).await {
            Ok(contents) => Ok(ReadResourceResult::new(vec![contents]).into()),
            Err(Mistake(why)) => Err(ErrorData::resource_not_found(why, None)),
        }
    }
}
