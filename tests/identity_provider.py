"""An identity provider: keys of several kinds, and the tokens that it signs with them."""

import json
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "our-app"


@dataclass
class ProviderKey:
    kid: str
    algorithm: str
    private: Any

    @property
    def public(self) -> dict[str, Any]:
        """As it is in a key set."""
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        entry: dict[str, Any] = json.loads(algorithm.to_jwk(self.private.public_key()))
        return {**entry, "kid": self.kid, "alg": self.algorithm, "use": "sig"}

    def sign(self, **claims: object) -> str:
        headers = {"kid": self.kid} if self.kid else {}
        return jwt.encode({"aud": AUDIENCE, **claims}, self.private, self.algorithm, headers)


def rsa_key(kid: str, algorithm: str = "RS256", bits: int = 2048) -> ProviderKey:
    return ProviderKey(kid, algorithm, rsa.generate_private_key(65537, bits))


def ec_key(kid: str) -> ProviderKey:
    return ProviderKey(kid, "ES256", ec.generate_private_key(ec.SECP256R1()))


def ed_key(kid: str) -> ProviderKey:
    return ProviderKey(kid, "EdDSA", ed25519.Ed25519PrivateKey.generate())


def key_set(*keys: ProviderKey) -> bytes:
    return json.dumps({"keys": [key.public for key in keys]}).encode()
