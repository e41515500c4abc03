"""CKKS vectors through TenSEAL: contexts from bytes, vectors to and from bytes, and whole numbers out of approximate ones."""

import hashlib
import os
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from fedskew.errors import FedskewError
from fedskew.streams import Floats, Ints

SLOTS = 4096  # numbers in a vector; a ciphertext costs the same however many of them are used
TOLERANCE = 0.25  # how far a decrypted number may lie from a whole one; docs/secret-labels.md has the noise it allows for

_DEGREE = 2 * SLOTS
_MODULI = (60, 60, 60, 38)  # 218 bits in all, the most at this degree for 128-bit security
_GREATEST = 2.0**46  # beyond all masks and sums; above 2^53 every number would look whole
_FLOOD = 2.0**42  # fresh noise times this, or up to twice as much, is about 0.01

Vector: TypeAlias = Any  # an encrypted vector of SLOTS numbers; TenSEAL has no types


class Context:
    """Parameters and keys: with the secret key at clients, with the public key alone at the server."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.fingerprint = hashlib.sha256(self.public_bytes()).hexdigest()

    def public_bytes(self) -> bytes:
        """Parameters and public key, all that the server needs: it never rotates or multiplies two ciphertexts."""
        return self._bytes(secret=False)

    def secret_bytes(self) -> bytes:
        """The secret key too: for clients only."""
        return self._bytes(secret=True)

    def encrypt(self, values: Floats) -> Vector:
        """A vector under the public key; equal values never give equal ciphertexts."""
        return _tenseal().ckks_vector(self.raw, values.tolist())

    def cover(self, masks: Ints) -> Vector:
        """``masks``, to be added to products before somebody with the secret key sees them, with noise that hides theirs.

        A product's own noise is proportional to its factor and would tell how large that was. Here fresh noise is multiplied by
        about 2^42 at random, different in every slot: a constant, or a mask added as it is, would leave the lowest bits of what
        it covers bare, as TenSEAL encodes no more than 53 bits. Rescaling, which TenSEAL does after every product, then takes
        the bits away that even a random factor leaves.
        """
        words = np.frombuffer(os.urandom(8 * SLOTS), dtype=np.uint64)
        factors = _FLOOD * (1 + (words >> np.uint64(12)) * 2.0**-52) * np.where(words & np.uint64(1), 1.0, -1.0)
        return self.encrypt(masks / factors) * factors.tolist()

    def load(self, data: bytes, whose: str) -> Vector:
        """The vector that ``whose`` made."""
        try:
            vector = _tenseal().ckks_vector_from(self.raw, data)
        except (ValueError, RuntimeError) as error:
            raise _unreadable(whose, len(data), str(error)) from None
        if vector.size() != SLOTS:
            raise _unreadable(whose, len(data), f"it holds {vector.size()} numbers, not {SLOTS}")
        return vector

    def decrypt(self, data: bytes, whose: str) -> Floats:
        """The numbers of a vector, each within a little noise; raises ValueError without the secret key."""
        return np.array(self.load(data, whose).decrypt())

    def _bytes(self, secret: bool) -> bytes:
        data: bytes = self.raw.serialize(save_secret_key=secret, save_galois_keys=False, save_relin_keys=False)
        return data


def make_context() -> Context:
    """New keys, from TenSEAL's own cryptographic randomness."""
    ts = _tenseal()
    from tenseal import sealapi

    raw = ts.context(ts.SCHEME_TYPE.CKKS, _DEGREE, coeff_mod_bit_sizes=list(_MODULI), n_threads=1)
    # Rescaling divides by the last prime but one (the very last is for keys), and TenSEAL takes it for the scale: let it be.
    raw.global_scale = float(sealapi.CoeffModulus.Create(_DEGREE, list(_MODULI))[-2].value())
    return Context(raw)


# A loaded context takes 10 MB. Simulated clients hold the same bytes, so they share one; it is gone when they are.
_loaded: WeakValueDictionary[bytes, Context] = WeakValueDictionary()


def load_context(data: bytes, party: str) -> Context:
    """The context that was given to ``party`` at enrolment."""
    key = hashlib.sha256(data).digest()
    found = _loaded.get(key)
    if found is not None:
        return found
    try:
        context = Context(_tenseal().context_from(data, 1))
    except (ValueError, RuntimeError) as error:
        raise FedskewError(f"{party}: its CKKS context cannot be read ({error}): enrol it again") from None
    _loaded[key] = context
    return context


def whole(values: Floats, whose: str) -> Ints:
    """The whole numbers that ``values`` approximate.

    >>> whole(np.array([2.99, -4.02]), "client 1").tolist()
    [3, -4]
    """
    nearest: Floats = np.rint(values)
    if np.any(np.abs(values) > _GREATEST) or np.any(np.abs(values - nearest) > TOLERANCE):
        raise FedskewError(
            f"{whose}: a decrypted number is no whole number below 2^46, even within {TOLERANCE}, the ciphertext was changed "
            f"or made with another key: enrol all parties with the same key holder"
        )
    return nearest.astype(np.int64)


def _unreadable(whose: str, size: int, why: str) -> FedskewError:
    return FedskewError(f"{whose}: a ciphertext of {size} bytes cannot be read ({why}): send it again, made with this context")


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise FedskewError("secret labels need TenSEAL: pip install 'fedskew[he]'") from None
    return tenseal
