//! Who may ask: keys, and protection of a server on loopback from pages of other sites.

use crate::error::ApiError;
use axum::http::{HeaderMap, header};
use std::net::{IpAddr, SocketAddr};

/// The rules.
pub struct Guard {
    keys: Vec<String>,
    hosts: Vec<String>,
    origins: Vec<String>,
    /// Whether the server listens on loopback only: then a name that leads here must be one of ours, since a page could have
    /// its own name point here.
    loopback: bool,
}

impl Guard {
    /// Rules for a server at an address.
    pub fn new(address: SocketAddr, keys: Vec<String>, hosts: Vec<String>, origins: Vec<String>) -> Self {
        Guard { keys, hosts, origins, loopback: address.ip().is_loopback() }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// 401 or 403.
    pub fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        self.check_host(headers)?;
        self.check_origin(headers)?;
        if path == "/health" || self.keys.is_empty() || is_page(path) {
            return Ok(());
        }
        let shown = key_of(headers).unwrap_or_default();
        match self.keys.iter().any(|key| same(key.as_bytes(), shown.as_bytes())) {
            true => Ok(()),
            false => Err(ApiError::no_key()),
        }
    }

    fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.loopback {
            return Ok(());
        }
        let host = text(headers, header::HOST.as_str()).unwrap_or_default();
        match self.is_ours(name_of(host)) {
            true => Ok(()),
            false => Err(ApiError::forbidden(format!(
                "`{host}` is not a name of this server; --allow-host makes it one"
            ))),
        }
    }

    fn is_ours(&self, name: &str) -> bool {
        let address = name.trim_matches(['[', ']']).parse::<IpAddr>();
        address.is_ok_and(|a| a.is_loopback())
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let allowed = self.origins.iter().any(|o| o == "*" || o.eq_ignore_ascii_case(origin));
        let host = text(headers, header::HOST.as_str()).unwrap_or_default();
        let own = ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host));
        match allowed || own {
            true => Ok(()),
            false => Err(ApiError::forbidden(format!(
                "pages of `{origin}` may not use this server; --allow-origin lets them"
            ))),
        }
    }

    /// The origin that an answer names, so that its page may read it.
    pub fn allowed_origin<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let origin = text(headers, header::ORIGIN.as_str())?;
        self.check_origin(headers).is_ok().then_some(origin)
    }
}

/// The page asks for the key itself, and holds nothing that needs one.
fn is_page(path: &str) -> bool {
    matches!(path, "/" | "/app.js" | "/style.css" | "/favicon.ico")
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let bearer = text(headers, header::AUTHORIZATION.as_str());
    bearer.and_then(|value| value.strip_prefix("Bearer ")).or_else(|| text(headers, "x-api-key"))
}

/// Compares in a time that tells only the length.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(address: &str, keys: &[&str]) -> Guard {
        let list = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        Guard::new(
            address.parse().unwrap(),
            list(keys),
            list(&["box.lan"]),
            list(&["https://friend.example"]),
        )
    }

    fn status(guard: &Guard, path: &str, headers: &[(&'static str, &str)]) -> u16 {
        let map = headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        guard.check(path, &map).err().map_or(200, |e| e.status.as_u16())
    }

    #[test]
    fn only_our_own_names_lead_here() {
        let local = guard("127.0.0.1:80", &[]);
        for host in ["localhost:80", "127.0.0.1", "127.0.0.5:9", "[::1]:80", "LOCALHOST", "box.lan:80"] {
            assert_eq!(status(&local, "/", &[("host", host)]), 200, "{host}");
        }
        for host in ["evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "", "[::2]"] {
            assert_eq!(status(&local, "/health", &[("host", host)]), 403, "{host}");
        }
        let open = guard("0.0.0.0:80", &["k"]);
        assert_eq!(status(&open, "/health", &[("host", "any.example")]), 200);
    }

    #[test]
    fn pages_of_others_are_kept_out() {
        let local = guard("127.0.0.1:80", &[]);
        let from = |origin| status(&local, "/v1/models", &[("host", "localhost:80"), ("origin", origin)]);
        assert_eq!([from("http://localhost:80"), from("https://friend.example")], [200, 200]);
        let others = ["null", "http://localhost:81", "https://evil.example", "http://localhost"];
        assert_eq!(others.map(from), [403; 4]);
    }

    #[test]
    fn keys_guard_all_but_health() {
        let keyed = guard("127.0.0.1:80", &["alpha", "beta"]);
        let with = |path, name, value| status(&keyed, path, &[("host", "localhost"), (name, value)]);
        assert_eq!(with("/v1/models", "authorization", "Bearer beta"), 200);
        assert_eq!(with("/v1/models", "x-api-key", "alpha"), 200);
        for value in ["Bearer alph", "Bearer alphaa", "alpha", "Basic alpha", ""] {
            assert_eq!(with("/v1/models", "authorization", value), 401, "{value}");
        }
        for path in ["/metrics", "/ready", "/api/tags", "/admin/drain", "/v1/chat/completions", "/nowhere"] {
            assert_eq!(with(path, "accept", "x"), 401, "{path}");
        }
        assert_eq!([with("/health", "accept", "x"), with("/", "accept", "x")], [200, 200]);
    }
}
